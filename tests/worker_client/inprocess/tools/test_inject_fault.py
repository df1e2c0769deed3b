"""Each fault does to a real process what its name says, and all ranks choose the same victims."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from worker_client.inprocess.tools import inject_fault as module
from worker_client.inprocess.tools.inject_fault import Fault, inject_fault
from worker_client.shared_utils import inject_fault as old_name

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 30
# Beats in its main thread and in another one, until something happens to it.
SCRIPT = """
import os, sys, threading
from worker_client.inprocess.tools.inject_fault import Fault, InjectedFaultError, inject_fault
def beat():
    while True:
        os.write(1, b"t")
        threading.Event().wait(0.02)
threading.Thread(target=beat, daemon=True).start()
try:
    inject_fault(Fault[sys.argv[1]], 1, 0, 0.1, 1)
    while True:
        os.write(1, b"m")
        threading.Event().wait(0.02)
except InjectedFaultError:
    os.write(1, b"E")
"""


def _start(fault: Fault) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-c", SCRIPT, fault.name]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault.EXIT, 1),
        (Fault.ABORT, -signal.SIGABRT),
        (Fault.SEGFAULT, -signal.SIGSEGV),
        (Fault.SIGINT, -signal.SIGINT),
        (Fault.SIGTERM, -signal.SIGTERM),
        (Fault.SIGKILL, -signal.SIGKILL),
    ],
)
def test_faults_that_end_the_process(fault: Fault, code: int):
    with _start(fault) as process:
        assert process.wait(TIMEOUT_S) == code


def test_an_exception_comes_in_the_main_thread():
    with _start(Fault.EXCEPTION) as process:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert output.endswith(b"E") or b"E" in output
    assert process.returncode == 0


def test_sigstop_stops_the_process():
    with _start(Fault.SIGSTOP) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.kill()


def test_a_hang_is_of_the_main_thread_alone():
    """Bytes of the other thread continue: twenty in a row without one of the main thread."""
    with _start(Fault.HANG) as process:
        assert process.stdout is not None
        others = 0
        while others < 20:
            others = others + 1 if process.stdout.read(1) == b"t" else 0
        process.kill()


def test_a_held_gil_stops_all_threads():
    import select

    with _start(Fault.LOCK_GIL) as process:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        assert os.read(descriptor, 1)
        while select.select([descriptor], [], [], 1.0)[0]:
            assert os.read(descriptor, 4096), "the process has ended"
        assert process.poll() is None
        process.kill()


def _chosen(monkeypatch: pytest.MonkeyPatch, world_size: int, num_faults: int, keep_alive: int, seed: int) -> list[int]:
    """Returns the ranks whose timer was started; it would fire in an hour."""
    chosen: list[int] = []
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    for rank in range(world_size):
        monkeypatch.setenv("RANK", str(rank))
        timer = inject_fault((Fault.EXCEPTION, Fault.HANG), num_faults, keep_alive, (3600.0, 7200.0), seed)
        if timer is not None:
            assert 3600.0 <= timer.interval <= 7200.0
            timer.cancel()
            timer.join()
            chosen.append(rank)
    return chosen


def test_all_ranks_choose_the_same_and_spare_the_first(monkeypatch: pytest.MonkeyPatch):
    found = [_chosen(monkeypatch, 16, 4, 3, seed) for seed in range(20)]
    assert all(len(ranks) == 4 and min(ranks) >= 3 for ranks in found)
    assert len({tuple(ranks) for ranks in found}) > 10
    assert found == [_chosen(monkeypatch, 16, 4, 3, seed) for seed in range(20)]


def test_a_rank_in_reserve_is_spared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "None")
    assert inject_fault(Fault.EXCEPTION, 2, 0, 3600.0) is None


def test_never_more_than_there_are(monkeypatch: pytest.MonkeyPatch):
    assert _chosen(monkeypatch, 4, 9, 1, 0) == [1, 2, 3]
    assert _chosen(monkeypatch, 4, 9, 4, 0) == []


def test_no_kind_of_fault_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        inject_fault(())


def test_the_old_name_leads_here():
    assert old_name.inject_fault is module.inject_fault
    assert old_name.Fault is module.Fault
