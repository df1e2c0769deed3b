"""`holdfast run` that brings its etcd, with the real program: what a killed run leaves, and what the next one does."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
from pathlib import Path

import pytest

from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import LIMIT_S, Nodes, nodes

pytestmark = pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd: apt-get install etcd-server")


def free_port() -> int:
    """Returns a port that the kernel gives to no client, with the next one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1]) // 2 + 8_000


def _start(job: Nodes, *, path: str = os.environ["PATH"]) -> None:
    token = job.folder / "token"
    if not token.exists():
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
    conf = f"members=3,token_file={token}"
    job.start(1, "60", flags=("--rdzv-backend", "etcd", "--rdzv-conf", conf), PATH=path)


def _folder(job: Nodes) -> Path:
    return job.folder / "node1" / "state" / "etcd" / job.job_id / "127.0.0.1"


def _etcd_of(job: Nodes) -> int:
    """Returns the process of the member's program; 0: none."""
    data = f"{_folder(job)}/data"
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_text().split("\0")
        except OSError:
            continue  # it has ended
        if data in words and words[0].endswith("etcd"):
            return int(each.parent.name)
    return 0


@pytest.mark.soak
def test_a_killed_run_leaves_no_etcd_and_the_next_one_begins_a_new_one(tmp_path: Path):
    with nodes(tmp_path, "1:3") as job:
        job.port = free_port()
        job.endpoint = f"127.0.0.1:{job.port}"
        _start(job)
        job.until_running(0, 2)
        before = _etcd_of(job)
        assert before
        job.processes[0].send_signal(signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{before}").exists(), timeout_s=LIMIT_S, what="the end of its etcd")
        job.processes[0].wait(LIMIT_S)
        for stamp in tmp_path.glob("0-*"):
            stamp.unlink()
        assert _folder(job).exists()
        _start(job)
        job.until_running(0, 2)
        job.let_end()
        assert job.processes[1].wait(LIMIT_S) == 0
        assert not _etcd_of(job)
        assert not _folder(job).exists()


def test_without_the_program_nothing_begins(tmp_path: Path):
    with nodes(tmp_path, "1:3") as job:
        empty = tmp_path / "empty"
        empty.mkdir()
        _start(job, path=str(empty))
        assert job.processes[0].wait(LIMIT_S) != 0
        assert "there is no program etcd on this node; install etcd 3.4 or newer" in job.output(1)
        assert not list(tmp_path.glob("0-*"))
