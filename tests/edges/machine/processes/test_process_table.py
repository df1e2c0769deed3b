"""The process table is read as the kernel writes it, including names with brackets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from supervisor.edges.machine.processes import process_table
from tests.edges.workers.worker_side import until

# This name would break a reader that counts fields from the left.
NAMED = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) S 1 (b'); print(flush=True); input()"


def _start(*command: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=env)


def test_a_process_is_found_with_parent_session_and_start():
    child = subprocess.Popen([sys.executable, "-c", NAMED], stdin=-1, stdout=-1, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        entry = process_table.look_up(child.pid)
        assert entry is not None
        assert (entry.pid, entry.parent_pid, entry.session) == (child.pid, os.getpid(), child.pid)
        started_at_unix_s = psutil.boot_time() + entry.started_ticks / os.sysconf("SC_CLK_TCK")
        assert abs(started_at_unix_s - psutil.Process(child.pid).create_time()) < 2
        assert child.pid in {each.pid for each in process_table.all_processes()}
        assert process_table.descends_from(child.pid, os.getpid())
        assert process_table.descends_from(child.pid, os.getppid()) or os.getppid() <= 1
        assert not process_table.descends_from(os.getpid(), child.pid)
    finally:
        child.communicate(b"\n", timeout=30)
    assert process_table.look_up(child.pid) is None


async def test_variables_and_namespaces_that_can_not_be_seen_are_none(monkeypatch: pytest.MonkeyPatch):
    child = _start("sleep", "600", env={"HOLDFAST_JOB_ID": "a=b", "EMPTY": ""})
    try:
        await until(lambda: process_table.initial_variable(child.pid, "EMPTY") is not None)  # its exec is done
        assert process_table.initial_variable(child.pid, "HOLDFAST_JOB_ID") == "a=b"
        assert process_table.initial_variable(child.pid, "EMPTY") == ""
        assert process_table.initial_variable(child.pid, "HOLDFAST_JOB") is None
        monkeypatch.setattr(process_table, "ENVIRON_BYTES_MAX", 3)
        assert process_table.initial_variable(child.pid, "HOLDFAST_JOB_ID") is None, "no more is read"
        assert process_table.namespace(child.pid, "pid") == process_table.namespace(os.getpid(), "pid")
    finally:
        child.kill()
        child.wait()
    assert process_table.initial_variable(child.pid, "EMPTY") is None
    assert process_table.namespace(child.pid, "user") is None
    assert len(process_table.boot_id()) == 36


def test_a_signal_reaches_the_process_that_was_meant_and_no_later_one_with_its_pid():
    shell = subprocess.Popen(["sh", "-c", "sleep 600 & wait"])
    while not (below := process_table.descendants(shell.pid)):
        assert shell.poll() is None
    (sleep,) = below
    process_table.send(sleep._replace(started_ticks=sleep.started_ticks - 1), signal.SIGKILL)
    found = process_table.look_up(sleep.pid)
    assert found is not None
    assert found.state not in "ZX"
    process_table.send(sleep, signal.SIGKILL)
    assert shell.wait() == 0  # `wait` returns once its child has ended
    process_table.send(sleep, signal.SIGKILL)
