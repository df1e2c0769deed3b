"""`torchrun --rdzv-backend=holdfast`: real torchruns on addresses of this machine lose a worker, or one torchrun."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.launch import COOKIE, processes_with, wait_until
from tests.e2e.torchrun import TORCHRUN
from tests.programs.torchrun.installed import entry_point

LIMIT_S = 100.0
GLOO = """
import os, signal, sys
import torch.distributed as dist
folder = sys.argv[1]
dist.init_process_group("gloo")
rank, address, port = dist.get_rank(), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
is_first = not os.path.exists(f"{folder}/killed")
dist.barrier()
open(f"{folder}/{'first' if is_first else 'second'}-{rank}", "w").write(f"{dist.get_world_size()} {address} {port}")
dist.barrier()
if is_first and rank == 1:
    open(f"{folder}/killed", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
"""
PLAIN = """
import os, sys, time
folder = sys.argv[1]
world, rank = os.environ["WORLD_SIZE"], os.environ["RANK"]
open(f"{folder}/{world}-{rank}", "w").write(os.environ["MASTER_ADDR"])
deadline = time.monotonic() + 90
while time.monotonic() < deadline and not os.path.exists(f"{folder}/end"):
    time.sleep(0.02)
"""


class Torchruns:
    def __init__(self, folder: Path, script: str, nnodes: str) -> None:
        self.folder = folder
        self.nnodes = nnodes
        (folder / "train.py").write_text(script)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.cookie = uuid.uuid4().hex
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        self.environment = {**kept, COOKIE: self.cookie, "PYTHONPATH": str(entry_point(folder)), "OMP_NUM_THREADS": "1"}
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, number: int) -> subprocess.Popen[bytes]:
        command = [
            *TORCHRUN, "--nnodes", self.nnodes, "--nproc-per-node", "1", "--max-restarts", "2",
            "--rdzv-id", f"t-{self.cookie[:8]}", "--rdzv-backend", "holdfast",
            "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--local-addr", f"127.0.0.{number}",
            str(self.folder / "train.py"), str(self.folder),
        ]  # fmt: skip
        with (self.folder / f"output{number}").open("wb") as output:
            process = subprocess.Popen(command, env=self.environment, stdout=output, stderr=output)
        self.processes.append(process)
        return process

    def output(self, number: int) -> str:
        return (self.folder / f"output{number}").read_text()

    def until(self, *names: str) -> list[str]:
        files = [self.folder / name for name in names]
        wait_until(
            lambda: all(path.exists() and path.read_text() for path in files), timeout_s=LIMIT_S, what=", ".join(names)
        )
        return [path.read_text() for path in files]


@contextmanager
def torchruns(folder: Path, script: str, nnodes: str) -> Generator[Torchruns]:
    started = Torchruns(folder, script, nnodes)
    try:
        yield started
    finally:
        for process in started.processes:
            process.kill()
            process.wait(LIMIT_S)
        for pid in processes_with(started.cookie):  # a killed torchrun leaves its workers behind
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_worker_is_killed_and_all_meet_again_at_a_fresh_store(tmp_path: Path):
    with torchruns(tmp_path, GLOO, "2") as job:
        processes = [job.start(number) for number in (2, 3)]
        first = job.until("first-0", "first-1")
        second = job.until("second-0", "second-1")
        assert [process.wait(LIMIT_S) for process in processes] == [0, 0]
    for words in (first, second):
        assert re.fullmatch(r"2 127\.0\.0\.[23] \d+", words[0])
        assert len(set(words)) == 1
    assert first[0].split()[-1] != second[0].split()[-1], "a new port"
    restarts = [number for number in (2, 3) if "holdfast: the workers restart" in job.output(number)]
    assert len(restarts) == 1, "the node whose worker was not killed is told why"


@pytest.mark.soak
def test_a_torchrun_is_killed_and_the_other_goes_on_alone_and_then_with_a_new_one(tmp_path: Path):
    with torchruns(tmp_path, PLAIN, "1:2") as job:
        first = job.start(2)
        wait_until(lambda: _listens(job.port), timeout_s=LIMIT_S, what="a leader")
        second = job.start(3)
        job.until("2-0", "2-1")
        second.kill()
        assert job.until("1-0") == ["127.0.0.2"]
        assert re.search(r"the workers restart: node 127\.0\.0\.3/\d+ is lost: the other side has", job.output(2))
        for name in ("2-0", "2-1"):
            (tmp_path / name).unlink()
        third = job.start(4)
        job.until("2-0", "2-1")
        assert re.search(r"the workers restart: waiting to join: 127\.0\.0\.4/\d+", job.output(2))
        (tmp_path / "end").touch()
        assert [first.wait(LIMIT_S), third.wait(LIMIT_S)] == [0, 0]


@pytest.mark.soak
def test_the_nodes_supervisor_leads_so_that_the_first_torchrun_may_be_lost(tmp_path: Path):
    """Both torchruns follow. The one on the endpoint's node is killed, and the other continues with a new one."""
    with torchruns(tmp_path, PLAIN, "2:3") as job, daemon(tmp_path, job.environment):
        first = job.start(2)
        wait_until(lambda: _listens(job.port), timeout_s=LIMIT_S, what="a leader")
        second, third = job.start(3), job.start(4)
        job.until("3-0", "3-1", "3-2")
        first.kill()
        job.until("2-0", "2-1")
        assert re.search(r"the workers restart: node 127\.0\.0\.2/\d+ is lost: the other side has", job.output(3))
        (tmp_path / "end").touch()
        assert [second.wait(LIMIT_S), third.wait(LIMIT_S)] == [0, 0]


@contextmanager
def daemon(folder: Path, environment: dict[str, str]) -> Generator[None]:
    """Runs a daemon that torchruns find from now on."""
    places = {"HOLDFAST_SOCKET_DIR": str(folder / "run"), "HOLDFAST_STATE_DIR": str(folder / "state")}
    environment |= places
    command = [sys.executable, "-m", "supervisor", "daemon"]
    with (folder / "daemon.txt").open("wb") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
    try:
        wait_until((folder / "run" / "control.sock").exists, timeout_s=LIMIT_S, what="the daemon")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
