"""Does a dry run say which supervisor would get the job?"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli import run


@pytest.mark.parametrize("nodes", [(), ("--nnodes", "2", "--rdzv-id", "a", "--rdzv-endpoint", "127.0.0.1:7")])
def test_a_dry_run_says_that_nobody_serves_the_folder(
    nodes: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """On several nodes, too: a node's supervisor also takes such jobs."""
    assert run.execute_argv(["--dry-run", "--socket-dir", str(tmp_path), *nodes, "train.py"]) == 0
    assert f"none: nobody answers at {tmp_path}" in capsys.readouterr().out


def test_before_an_error_about_the_script_nothing_else_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Not even which variable is set for its workers: that concerns nobody then."""
    (tmp_path / "train.py").touch()
    for name, is_told in (("none.py", False), ("train.py", True)):
        run.execute_argv(["--dry-run", "--nproc-per-node", "2", str(tmp_path / name)])
        assert ("OMP_NUM_THREADS is set to 1" in capfd.readouterr().err) is is_told
