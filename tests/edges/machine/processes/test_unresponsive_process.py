"""What a real process does is described plainly: stopped, waiting in a call, gone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.edges.machine.processes.unresponsive_process import process_state
from tests.edges.workers.worker_side import until


@pytest.fixture
def reader() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    yield process
    process.kill()
    process.communicate(timeout=10)


def _start(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_one_that_waits_says_in_which_call_and_of_what(reader: subprocess.Popen[bytes]) -> None:
    await until(lambda: "state S" in process_state(reader.pid) and "read" in process_state(reader.pid))
    assert process_state(reader.pid).startswith("waits in the kernel (state S) in read of pipe:[")


async def test_one_that_was_stopped_or_has_ended_says_so(reader: subprocess.Popen[bytes]) -> None:
    reader.send_signal(signal.SIGSTOP)
    await until(lambda: process_state(reader.pid) == "is stopped (state T)")
    reader.send_signal(signal.SIGKILL)
    await until(lambda: process_state(reader.pid) == "has ended")
    reader.wait(10)
    assert process_state(reader.pid) == "has ended"


def test_one_that_runs_says_so() -> None:
    assert process_state(os.getpid()) == "runs"


async def test_a_file_is_named_without_being_looked_up(tmp_path: Path) -> None:
    """Another process holds the lock: the file is gone by then, and is named anyway."""
    path = tmp_path / "lock"
    script = "exec 3>$0; flock 3; echo; cat"
    with _start("sh", "-c", script, str(path)) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with _start("flock", str(path), "true") as waiter:
            await until(lambda: "flock" in process_state(waiter.pid))
            path.unlink()
            assert f"in flock of {path} (deleted)" in process_state(waiter.pid)
            waiter.kill()
        holder.kill()
