"""A cycle's secret is random, readable only by its owner, and removed with the cycle."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from supervisor.edges.machine.folders.worker_tokens import TOKEN_BYTES, WorkerTokens


def test_a_token_is_fresh_and_in_a_closed_file(tmp_path: Path):
    tokens = WorkerTokens(tmp_path / "tokens")
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
    _, path = WorkerTokens(root).issue(job_id, 0)
    assert path.parent.parent == root
    assert path.resolve().is_relative_to(root.resolve())


def test_an_old_token_that_is_a_link_is_not_followed(tmp_path: Path):
    tokens = WorkerTokens(tmp_path / "tokens")
    _, path = tokens.issue("job", 0)
    path.unlink()
    path.symlink_to(tmp_path / "precious")
    tokens.issue("job", 0)
    assert not path.is_symlink()
    assert not (tmp_path / "precious").exists()


def test_a_folder_that_others_were_let_into_is_closed_again_and_its_old_token_is_void(tmp_path: Path):
    tokens = WorkerTokens(tmp_path / "tokens")
    first, path = tokens.issue("job", 0)
    for folder in (path.parent, path.parent.parent):
        folder.chmod(0o777)
    again, same = tokens.issue("job", 0)
    assert (same, again == first) == (path, False)
    assert {folder.stat().st_mode & 0o777 for folder in (path.parent, path.parent.parent)} == {0o700}


@pytest.mark.parametrize("spoil", ["file", "link", "stranger"])
def test_where_no_file_can_be_written_the_token_is_in_memory_with_a_path(tmp_path: Path, spoil: str):
    root = tmp_path / "tokens"
    match spoil:
        case "file":
            root.touch()
        case "link":
            (tmp_path / "else").mkdir()
            root.symlink_to(tmp_path / "else")
        case _:
            if os.geteuid() != 0:
                pytest.skip("only root can give a directory away")
            root.mkdir()
            os.chown(root, 4321, 4321)
    tokens = WorkerTokens(root)
    before = len(os.listdir("/proc/self/fd"))
    tokens.issue("job", 0)
    token, path = tokens.issue("job", 0)
    assert path.read_bytes() == token
    assert path == tokens.path("job", 0)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parts[1:3] == ("proc", str(os.getpid()))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    tokens.issue("job", 1)
    tokens.withdraw("job", 0)
    tokens.remove_all()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_the_umask_neither_opens_nor_hides_a_token(tmp_path: Path, umask: int):
    before = os.umask(umask)
    try:
        _, path = WorkerTokens(tmp_path / "tokens").issue("job", 0)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_threads_that_issue_and_withdraw_at_once_do_not_meet(tmp_path: Path):
    tokens = WorkerTokens(tmp_path / "tokens")

    def turn(cycle: int) -> bool:
        for _ in range(200):
            token, path = tokens.issue("job", cycle)
            if path.read_bytes() != token or "proc" in path.parts:
                return False
            tokens.withdraw("job", cycle)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(turn, range(4)))


OF_A_SUPERVISOR_OF_ROOTS_SERVICE = """
import ctypes, os, subprocess, sys, tempfile
from pathlib import Path
from supervisor.edges.machine.folders.worker_tokens import WorkerTokens
root = Path(sys.argv[1])
if os.geteuid() == 0:
    os.setresuid(54321, 54321, 54321)
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE
tokens = WorkerTokens(root)
token, path = tokens.issue("job", 0)
read = subprocess.run(["cat", path], capture_output=True, check=True).stdout  # as a worker does
tokens.withdraw("job", 0)
print(read == token, path.stat().st_mode & 0o777 if path.exists() else "removed")
"""


def test_a_worker_reads_the_token_in_memory_of_a_supervisor_that_cannot_be_traced(tmp_path: Path):
    (tmp_path / "tokens").touch()
    done = subprocess.run(
        [sys.executable, "-c", OF_A_SUPERVISOR_OF_ROOTS_SERVICE, tmp_path / "tokens"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("True removed\n", "")
