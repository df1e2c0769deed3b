"""Whose is a supervisor? The tests are root, and make the folders of others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from supervisor.cli import job_owners

MALLORY, ALICE = 47114, 47111
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")
LISTEN = (
    "import os, socket, sys; os.setuid(int(sys.argv[1])); s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[2]); "
    "s.listen(); print(flush=True); sys.stdin.read()"
)


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listens(folder: Path, opened: ExitStack) -> Path:
    path = folder / "control.sock"
    listener = opened.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(path))
    listener.listen()
    return path


def folder_of(path: Path, uid: int) -> Path:
    path.mkdir(parents=True)
    os.chown(path, uid, uid)
    return path


def test_a_socket_of_root_is_roots(tmp_path: Path, opened: ExitStack):
    assert job_owners.probe_supervisor(listens(tmp_path, opened)) == job_owners.ProbeResult("", 0, os.getpid())


def test_root_names_its_folders_after_users(tmp_path: Path, opened: ExitStack):
    folder = folder_of(tmp_path / "users" / f"{ALICE}.0123456789ab", 0)
    assert job_owners.probe_supervisor(listens(folder, opened)).uid == ALICE


def test_nobody_else_names_a_folder_after_a_user(tmp_path: Path, opened: ExitStack):
    """Else mallory claims alice's jobs where root looks into a directory of hers."""
    folder_of(tmp_path / "users", MALLORY)
    folder = folder_of(tmp_path / "users" / f"{ALICE}.0123456789ab", MALLORY)
    assert job_owners.probe_supervisor(listens(folder, opened)).uid == MALLORY
    folder = folder_of(tmp_path / "users" / f"{ALICE}.1123456789ab", 0)
    assert job_owners.probe_supervisor(listens(folder, opened)).uid == 0


def test_a_link_to_a_socket_of_root_stays_its_owners(tmp_path: Path, opened: ExitStack):
    target = listens(folder_of(tmp_path / "users" / f"{ALICE}.0123456789ab", 0), opened)
    mine = folder_of(tmp_path / "mine", MALLORY)
    (mine / "control.sock").symlink_to(target)
    assert job_owners.probe_supervisor(mine / "control.sock").uid == MALLORY


def test_the_kernel_says_who_listens(tmp_path: Path, opened: ExitStack):
    folder = folder_of(tmp_path / f"{ALICE}.0123456789ab", 0)
    folder.chmod(0o777)
    for parent in (*folder.parents,)[:-2]:
        parent.chmod(parent.stat().st_mode | 0o011)
    path = folder / "control.sock"
    command = [sys.executable, "-I", "-S", "-c", LISTEN, str(MALLORY), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        assert job_owners.probe_supervisor(path).uid == MALLORY


def test_nobody_there(tmp_path: Path):
    assert job_owners.probe_supervisor(tmp_path / "control.sock").why_not == "no such file or directory"


def test_a_job_of_another_user_is_named_with_its_user():
    assert job_owners.name_of("train", os.geteuid()) == "train"
    assert job_owners.name_of("train", MALLORY) == f"{MALLORY}/train"
    assert job_owners.name_of("train", 1) == "daemon/train"
    assert job_owners.is_user("daemon", 1)
    assert job_owners.is_user("1", 1)
    assert not job_owners.is_user("daemon", 2)
