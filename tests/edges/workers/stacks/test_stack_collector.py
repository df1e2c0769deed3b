"""Stacks of real processes in every state, always within the budget."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.core.process_facts import ProcessState
from supervisor.edges.workers.stacks.stack_collector import StackCollector
from tests.edges.workers.worker_side import until

SCRIPTS = {
    "sleeping": "import time\ndef stand():\n  print(flush=True); time.sleep(600)",
    "holding": "import ctypes\nsleep = ctypes.PyDLL(None).sleep\ndef stand():\n  print(flush=True); sleep(600)",
    "busy": "def stand():\n  print(flush=True)\n  while True: pass",
    "threaded": "import threading, time\ndef work(): time.sleep(600)\ndef stand():\n"
    "  threading.Thread(target=work, name='uploader').start(); print(flush=True)",
    "calling": "def deep(n): return deep(n - 1) if n else 0\ndef stand():\n  print(flush=True)\n  while True: deep(20)",
}
GENEROUS_S = 20.0  # this machine may be slow; the budget's own test is below
Start = Callable[[str], subprocess.Popen[bytes]]


async def nobody(rank: int, timeout_s: float) -> str | None:
    return None


@pytest.fixture
def start(tmp_path: Path):
    started: list[subprocess.Popen[bytes]] = []

    def one(name: str) -> subprocess.Popen[bytes]:
        script = tmp_path / f"{name}.py"
        script.write_text(SCRIPTS[name] + "\nstand()\n")
        process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


async def test_the_threads_of_a_rank_whose_main_thread_has_ended_are_seen(start: Start):
    process = start("threaded")
    deadline_s = time.monotonic() + GENEROUS_S
    while True:  # Its main thread may still be on its way.
        (look,) = await StackCollector().look({3: process.pid}, budget_s=GENEROUS_S)
        if look.frames[-1].name == "_shutdown" or time.monotonic() > deadline_s:
            break
    assert (look.rank, look.frames[-1].name) == (3, "_shutdown")
    ((name, frames),) = [(each.name, each.frames) for each in look.threads]
    assert name == "uploader"
    assert str(frames[-1]) == "work (threaded.py:2)"


async def test_a_look_at_the_threads_ends_in_time_and_leaves_out_who_is_gone(start: Start):
    process = start("sleeping")
    process.kill()
    process.wait()
    assert await StackCollector().look({0: process.pid}, budget_s=GENEROUS_S) == ()
    assert await StackCollector().look({0: start("busy").pid}, budget_s=0.0) == ()


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_rank_is_seen_where_it_stands(start: Start, stopped: bool):
    names = [name for name in SCRIPTS if name != "threaded"]
    processes = [start(name) for name in names]
    if stopped:
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
    pids = {rank: process.pid for rank, process in enumerate(processes)}
    evidence = await StackCollector().collect(pids, ask=nobody, budget_s=GENEROUS_S)
    assert evidence.notes == ()
    assert evidence.source == "py-spy"
    assert {group.ranks for group in evidence.groups} == {(0,), (1,), (2,), (3,)}
    for name, group in zip(names, sorted(evidence.groups, key=lambda group: group.ranks), strict=True):
        lines = group.stack.splitlines()
        assert lines[0].startswith(f"<module> ({name}.py:")
        assert lines[1].startswith(f"stand ({name}.py:")
    # A look at a process does not change its state.
    states = {_state(pid) for pid in pids.values()}
    assert states <= ({"T"} if stopped else {"S", "R"})


async def test_ranks_at_the_same_place_are_one_group(start: Start):
    processes = [start("sleeping"), start("sleeping"), start("busy")]
    pids = {rank: process.pid for rank, process in enumerate(processes)}
    evidence = await StackCollector().collect(pids, ask=nobody, budget_s=GENEROUS_S)
    assert [group.ranks for group in evidence.groups] == [(2,), (0, 1)]
    assert evidence.summary().startswith("rank 2 stands in stand (busy.py:")


DUMP = 'Thread 0x01 (most recent call first):\n  File "/a/x.py", line 3 in f\n'


async def client(rank: int, timeout_s: float) -> str | None:
    return DUMP if rank == 0 and timeout_s > 0 else None


@pytest.mark.parametrize("why", ["missing", "denied", "gone"])
async def test_where_py_spy_can_not_look_the_client_is_asked(tmp_path: Path, why: str):
    py_spy = None
    if why == "missing":
        py_spy = tmp_path / "py-spy"
    elif why == "denied":
        py_spy = tmp_path / "py-spy"
        py_spy.write_text("#!/bin/sh\necho 'Permission Denied: Try running again' >&2; exit 1\n")
        py_spy.chmod(0o755)
    ended = subprocess.Popen(["true"])  # noqa: ASYNC220 ends at once
    ended.wait()
    evidence = await StackCollector(py_spy=py_spy).collect(
        {0: ended.pid, 5: ended.pid}, ask=client, budget_s=GENEROUS_S
    )
    assert [(group.ranks, group.stack) for group in evidence.groups] == [((0,), "f (x.py:3)")]
    assert evidence.source == "faulthandler"
    count, note = evidence.notes
    assert count == f"stacks of 1 of 2 ranks came within {GENEROUS_S:g} s"
    assert f"no stack of rank 5 (pid {ended.pid}): " in note
    assert {"missing": "can't be run", "denied": "Permission Denied", "gone": "process is running"}[why] in note


@pytest.mark.alone
async def test_the_budget_holds_whatever_hangs(tmp_path: Path):
    py_spy = tmp_path / "py-spy"
    py_spy.write_text("#!/bin/sh\necho $$ >> " + str(tmp_path / "pids") + "; trap '' TERM; exec sleep 600\n")
    py_spy.chmod(0o755)
    asked: list[int] = []

    async def hang(rank: int, timeout_s: float) -> str | None:
        asked.append(rank)
        await until(lambda: False, at_most_s=600)
        return None

    collector = StackCollector(py_spy=py_spy)
    began_s = time.monotonic()
    evidence = await collector.collect({0: os.getpid(), 1: os.getpid()}, ask=hang, budget_s=1.0)
    assert time.monotonic() - began_s < 1.0 + 0.1
    assert sorted(asked) == [0, 1]
    assert evidence.groups == ()
    assert evidence.notes[0] == "stacks of 0 of 2 ranks came within 1 s"
    # The hanging process was killed, and is reaped at the next look.
    left = [int(line) for line in (tmp_path / "pids").read_text().split()]
    await until(lambda: {_state(pid) for pid in left} <= {"Z", ""})
    await collector.collect({}, ask=nobody, budget_s=1.0)
    assert {_state(pid) for pid in left} == {""}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.mark.alone
async def test_a_slow_py_spy_leaves_the_rank_the_time_to_answer_itself(tmp_path: Path):
    py_spy = tmp_path / "py-spy"
    py_spy.write_text("#!/bin/sh\necho $$ > " + str(tmp_path / "pid") + "; exec sleep 600\n")
    py_spy.chmod(0o755)
    collector = StackCollector(py_spy=py_spy)
    left_s: list[float] = []

    async def answer(rank: int, timeout_s: float) -> str | None:
        left_s.append(timeout_s)
        return DUMP

    began_s = time.monotonic()
    evidence = await collector.collect({0: os.getpid()}, ask=answer, budget_s=2.0)
    assert time.monotonic() - began_s < 1.5
    assert evidence.source == "faulthandler"
    assert left_s[0] > 0.5
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: _state(pid) in ("Z", ""))
    await collector.collect({}, ask=nobody, budget_s=1.0)  # reaps it


@pytest.mark.alone
async def test_two_looks_are_as_far_apart_as_was_wanted(start: Start):
    pids = {0: start("sleeping").pid}
    began_s = time.monotonic()
    evidence = await StackCollector().collect(pids, ask=nobody, budget_s=GENEROUS_S, apart_s=0.7)
    assert 0.7 <= time.monotonic() - began_s < GENEROUS_S
    (facts,) = evidence.facts
    assert facts.process is not None
    assert facts.process.is_idle


@pytest.mark.alone
@pytest.mark.parametrize("is_slow", [False, True], ids=["it waits on", "it goes on"])
async def test_a_rank_in_state_d_is_looked_at_again_after_the_time_in_which_slow_storage_lets_it_go_on(
    tmp_path: Path, is_slow: bool
):
    os.mkfifo(tmp_path / "fifo")
    # Its child waits for a writer before it executes anything; until then the parent waits in the kernel.
    actions = "[(os.POSIX_SPAWN_OPEN, 0, 'fifo', os.O_RDONLY, 0)]"
    script = f"import os, time\nos.posix_spawn('/bin/true', ['true'], {{}}, file_actions={actions})\ntime.sleep(600)"
    release = threading.Timer(0.5, (tmp_path / "fifo").write_text, [""])
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, start_new_session=True) as process:  # noqa: ASYNC220 - quick
        try:
            await until(lambda: _state(process.pid) == "D")
            if is_slow:
                release.start()
            collector = StackCollector(py_spy=tmp_path / "none")
            evidence = await collector.collect({0: process.pid}, ask=nobody, budget_s=GENEROUS_S, kernel_wait_s=1.0)
        finally:
            release.cancel()
            os.killpg(process.pid, signal.SIGKILL)
    (facts,) = evidence.facts
    assert facts.process is not None
    assert (facts.process.state is ProcessState.UNINTERRUPTIBLE and facts.process.is_still) is not is_slow
