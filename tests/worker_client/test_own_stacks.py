"""Stacks on request, and by signal from a process whose main thread holds the GIL."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from holdfast_wire.v1 import worker_pb2 as wire

from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import RankMonitorClient
from worker_client.own_stacks import STACKS_SIGNAL, claim_signal, current_stacks

NewClient = Callable[[], RankMonitorClient]

HOLDS_THE_GIL = """
import ctypes, sys
from worker_client import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
def hold_the_gil():
    while True:  # a signal ends sleep() early
        ctypes.PyDLL(None).sleep(600)  # PyDLL does not release the GIL
hold_the_gil()
"""


@pytest.fixture
def gil_holder(rank_environment: Path) -> Iterator[subprocess.Popen[bytes]]:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", HOLDS_THE_GIL], cwd=root) as process:
        yield process
        process.kill()


def test_a_request_is_answered_with_the_main_thread_first(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    client.init_workload_monitoring()
    connection = supervisor.client()
    supervisor.wait(lambda: client.cfg is not None and client.cfg.rank_section_timeouts, "the welcome")
    connection.send(wire.SupervisorFrame(stacks_request=wire.StacksRequest(request_id=8)))
    supervisor.wait(lambda: connection.of("stacks_answer"), "the stacks")
    answer = connection.of("stacks_answer")[0].stacks_answer
    assert answer.request_id == 8
    first, *others = answer.text.split("\n\n")
    assert f"0x{threading.main_thread().ident:016x} (most recent call first):" in first
    assert "test_a_request_is_answered_with_the_main_thread_first" in first
    assert any("fake_supervisor.py" in block for block in others)
    assert "current_stacks" not in answer.text


def test_the_main_thread_comes_first_among_more_threads_than_faulthandler_prints():
    may_end = threading.Event()
    threads = [threading.Thread(target=may_end.wait) for _ in range(120)]
    for thread in threads:
        thread.start()
    answers: list[str] = []
    try:
        asking = threading.Thread(target=lambda: answers.append(current_stacks()))
        asking.start()
        asking.join()
    finally:
        may_end.set()
        for thread in threads:
            thread.join()
    first, *others = answers[0].split("\n\n")
    head, innermost, *_ = first.splitlines()
    assert head == f"Thread 0x{threading.main_thread().ident:016x} (most recent call first):"
    assert innermost.startswith(f'  File "{threading.__file__}", line ')
    assert "in test_the_main_thread_comes_first_among_more" in first
    assert len(others) > 90
    assert "..." not in answers[0].splitlines()


def test_a_process_that_holds_the_gil_is_read_by_signal(
    page_supervisor: FakeSupervisor, gil_holder: subprocess.Popen[bytes]
):
    hello = page_supervisor.client().hello
    assert hello.stacks_signal == STACKS_SIGNAL
    file = Path(f"/proc/{gil_holder.pid}/fd/{hello.stacks_fd}")
    stacks = ""

    def ask() -> bool:
        nonlocal stacks
        os.kill(gil_holder.pid, hello.stacks_signal)
        stacks = file.read_text()
        return "in hold_the_gil" in stacks

    page_supervisor.wait(ask, "the stacks")
    assert "channel.py" in stacks
    os.truncate(file, 0)
    page_supervisor.wait(ask, "the stacks again, from the start")
    assert not stacks.startswith("\0")


def test_the_signal_is_given_back(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    client.init_workload_monitoring()
    hello = supervisor.client().hello
    assert os.readlink(f"/proc/self/fd/{hello.stacks_fd}").startswith("/memfd:holdfast-stacks")
    client.shutdown_workload_monitoring()
    assert not faulthandler.unregister(STACKS_SIGNAL)
    os.kill(os.getpid(), STACKS_SIGNAL)  # is ignored by default


def test_a_signal_that_is_in_use_is_left_alone(supervisor: FakeSupervisor, new_client: NewClient):
    received: list[int] = []
    previous = signal.signal(STACKS_SIGNAL, lambda number, _: received.append(number))
    try:
        client = new_client()
        client.init_workload_monitoring()
        hello = supervisor.client().hello
        assert (hello.stacks_signal, hello.stacks_fd) == (0, 0)
        client.shutdown_workload_monitoring()
        os.kill(os.getpid(), STACKS_SIGNAL)
        supervisor.wait(lambda: received, "the script's own handler")
    finally:
        signal.signal(STACKS_SIGNAL, previous)


def test_only_one_client_of_a_process_has_the_signal():
    first = claim_signal()
    assert first is not None
    assert claim_signal() is None
    first.remove()


def test_current_stacks_leaves_out_who_asks():
    assert "test_current_stacks_leaves_out_who_asks" not in current_stacks()
