"""A cycle's secret is random, readable by its owner alone, and gone with the cycle."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.edges.machine.token_files import TOKEN_BYTES, TokenFiles


def test_a_token_is_fresh_and_in_a_closed_file(tmp_path: Path):
    tokens = TokenFiles(tmp_path / "tokens")
    first, path = tokens.issue("job", 0)
    assert len(first) == TOKEN_BYTES
    assert path.read_bytes() == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    second, other = tokens.issue("job", 1)
    assert (second == first, other == path) == (False, False)
    again, same = tokens.issue("job", 0)
    assert same == path
    assert again != first
    tokens.withdraw("job", 0)
    tokens.withdraw("job", 0)
    assert not path.exists()
    assert other.exists()
    tokens.withdraw("job", 1)
    assert not other.parent.exists()
    tokens.issue("job", 2)
    tokens.remove_all()
    tokens.remove_all()
    assert not (tmp_path / "tokens").exists()


@pytest.mark.parametrize("job_id", ["../../etc", "a/b", ".", "..", "", "x" * 500, "job é\n", "-"])
def test_a_jobs_id_can_not_lead_out(tmp_path: Path, job_id: str):
    root = tmp_path / "tokens"
    _, path = TokenFiles(root).issue(job_id, 0)
    assert path.parent.parent == root
    assert path.resolve().is_relative_to(root.resolve())


def test_an_old_token_that_is_a_link_is_not_followed(tmp_path: Path):
    tokens = TokenFiles(tmp_path / "tokens")
    _, path = tokens.issue("job", 0)
    path.unlink()
    path.symlink_to(tmp_path / "precious")
    tokens.issue("job", 0)
    assert not path.is_symlink()
    assert not (tmp_path / "precious").exists()
