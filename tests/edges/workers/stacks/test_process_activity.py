"""What does the kernel report about real processes, and does a blocked look hold up nobody?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from supervisor.core.process_facts import ProcessFacts, ProcessState
from supervisor.edges.machine.processes import process_table
from supervisor.edges.workers.stacks import process_activity
from supervisor.edges.workers.stacks.process_activity import (
    IDLE_S,
    ProcessActivity,
    ProcessSample,
    facts_of,
    is_stopped,
)

WRITING = "[(open('/dev/null', 'wb', 0).write(b'x'), time.sleep(0.05)) for _ in range(10_000)]"
# As a shell that leaves a program in the background: its parent ends, and its session stays.
DETACHES = "if (child := os.fork()) == 0:\n    if os.fork():\n        os._exit(0)\n"
WAITS = "os.waitpid(child, 0); print(flush=True); time.sleep(600)"
SCRIPTS = {
    "sleeps": "print(flush=True); time.sleep(600)",
    "spins": "print(flush=True)\nwhile True: pass",
    "locked": "lock = threading.Lock(); lock.acquire(); print(flush=True); lock.acquire()",
    "writes": f"threading.Thread(target=lambda: {WRITING}).start(); print(flush=True); time.sleep(600)",
    "has a child that writes": f"os.fork() or {WRITING}; print(flush=True); time.sleep(600)",
    "has a thread with a child that writes": (
        f"threading.Thread(target=lambda: (os.fork() or {WRITING}, time.sleep(600))).start(); "
        "print(flush=True); time.sleep(600)"
    ),
    "has a grandchild that writes": (
        f"(os.fork() or os.fork()) and time.sleep(600); time.sleep(0.5); print(flush=True); {WRITING}"
    ),
    "has a child and a grandchild": "os.fork() or os.fork() or print(flush=True); time.sleep(600)",
    "has detached one that writes": f"{DETACHES}    {WRITING}\n{WAITS}",
    "has detached one that sleeps": f"{DETACHES}    time.sleep(600)\n{WAITS}",
    "has a thread": "threading.Thread(target=time.sleep, args=(600,)).start(); print(flush=True); time.sleep(600)",
    "lost a child": "print(os.spawnlp(os.P_NOWAIT, 'true', 'true'), flush=True); time.sleep(600)",
    # Its child waits for a writer before it executes anything; until then the parent waits in the kernel.
    "state D": (
        "os.mkfifo('fifo'); print(flush=True)\n"
        "os.posix_spawn('/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, 'fifo', os.O_RDONLY, 0)])"
    ),
}
Start = Callable[[str], int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def one(name: str) -> int:
        command = [sys.executable, "-c", "import os, threading, time\n" + SCRIPTS[name]]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield one
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)  # the one in state D has a child that lives on
        process.communicate()


async def looked_at(pid: int, *, until_it_is: Callable[[ProcessFacts], bool]) -> ProcessFacts:
    """Repeats two looks, 20 ms apart, until they show the expected state."""
    looks, facts = ProcessActivity(), ProcessFacts()
    for _ in range(200):
        first = await looks.take({0: pid}, at_most_s=5)
        await anyio.sleep(0.02)
        second = await looks.take({0: pid}, at_most_s=5)
        facts = facts_of(first.get(0), second.get(0), apart_s=0.02) or ProcessFacts()
        if until_it_is(facts):
            break
    return facts


Looks = tuple[ProcessSample | None, ProcessSample | None]


async def two_looks(pid: int) -> Looks:
    activity = ProcessActivity()
    first = await activity.take({0: pid}, at_most_s=5)
    await anyio.sleep(IDLE_S)
    second = await activity.take({0: pid}, at_most_s=5)
    return first.get(0), second.get(0)


def looks_idle(looks: Looks, *, apart_s: float = IDLE_S) -> bool:
    facts = facts_of(*looks, apart_s=apart_s)
    assert facts is not None
    return facts.is_idle


async def test_a_stopped_process_is_named_with_its_signal(start: Start) -> None:
    pid = start("sleeps")
    assert not is_stopped(pid)
    os.kill(pid, signal.SIGSTOP)
    facts = await looked_at(pid, until_it_is=lambda facts: facts.state is ProcessState.STOPPED and facts.is_still)
    assert (facts.state, facts.is_still) == (ProcessState.STOPPED, True)
    assert facts.stop_signal in ("SIGSTOP", "")  # kernels before 6.0 do not report it
    assert is_stopped(pid)


@pytest.mark.parametrize(
    ("name", "is_idle"),
    [
        ("sleeps", True),
        ("has a child and a grandchild", True),
        ("writes", False),
        ("has a child that writes", False),
        ("has a thread with a child that writes", False),
        ("has a grandchild that writes", False),
    ],
)
async def test_one_that_writes_in_a_thread_or_a_child_is_told_from_one_that_only_waits(
    start: Start, name: str, is_idle: bool
) -> None:
    pid = start(name)
    looks = await two_looks(pid)
    for _ in range(10 * is_idle):
        if looks_idle(looks):
            break
        looks = await two_looks(pid)  # One of its processes was not asleep yet.
    assert looks_idle(looks) is is_idle
    assert not looks_idle(looks, apart_s=0.02)


@pytest.mark.parametrize(
    ("name", "is_idle"), [("has detached one that sleeps", True), ("has detached one that writes", False)]
)
async def test_one_that_was_detached_is_work_of_its_rank_as_long_as_it_is_in_its_session(
    start: Start, name: str, is_idle: bool
) -> None:
    process_table.become_subreaper()  # as the spawner is, which is the parent of ranks
    pid = start(name)
    looks = await two_looks(pid)
    for _ in range(10 * is_idle):
        if looks_idle(looks):
            break
        looks = await two_looks(pid)  # One of its processes was not asleep yet.
    assert looks_idle(looks) is is_idle
    assert looks[1] is not None
    (detached,) = looks[1].descendants
    assert not looks[1].children, "it waits for none"
    os.kill(detached.pid, signal.SIGKILL)
    os.waitpid(detached.pid, 0)  # noqa: ASYNC222 - it was killed


@pytest.mark.parametrize("unread", ["THREADS_READ_MAX", "DESCENDANTS_MAX", "children"])
async def test_one_of_which_not_all_descendants_can_be_found_is_never_called_idle(
    start: Start, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    """One of the others may save. Some kernels list no children at all."""

    def open_if_listed(path: str, flags: int, *rest: int) -> int:
        if path.endswith("/children"):
            raise FileNotFoundError(path)
        return os_open(path, flags, *rest)

    os_open = os.open
    if unread == "children":
        monkeypatch.setattr(os, "open", open_if_listed)
    else:
        monkeypatch.setattr(process_activity, unread, 1)
    looks = await two_looks(start("has a child and a grandchild"))
    monkeypatch.undo()
    assert not looks_idle(looks)


async def test_only_its_own_children_are_told(start: Start) -> None:
    """A grandchild is nothing that it waits for."""
    pid = start("has a child and a grandchild")
    facts = await looked_at(pid, until_it_is=lambda facts: bool(facts.children))
    assert len(facts.children) == 1


async def test_one_that_computes_is_told_from_one_that_waits(start: Start) -> None:
    spins = await looked_at(start("spins"), until_it_is=lambda facts: facts.cpu_share > 0.2)
    assert not spins.is_still
    assert spins.cpu_share > 0.2
    sleeps = await looked_at(start("sleeps"), until_it_is=lambda facts: facts.is_still)
    assert (sleeps.state, sleeps.waits_on_futex) == (ProcessState.SLEEPING, False)
    locked = await looked_at(start("locked"), until_it_is=lambda facts: facts.waits_on_futex)
    assert (locked.is_still, locked.waits_on_futex) == (True, True)


async def test_state_d_is_told_and_does_not_hold_up_the_look(start: Start) -> None:
    pid = start("state D")

    def is_seen(facts: ProcessFacts) -> bool:
        children = [each.state for each in facts.children]
        return (facts.state, children) == (ProcessState.UNINTERRUPTIBLE, [ProcessState.SLEEPING])

    assert is_seen(await looked_at(pid, until_it_is=is_seen))


async def test_a_dead_child_is_told(start: Start) -> None:
    facts = await looked_at(
        start("lost a child"),
        until_it_is=lambda facts: any(each.state is ProcessState.ZOMBIE for each in facts.children),
    )
    assert [each.state for each in facts.children] == [ProcessState.ZOMBIE]


async def test_a_look_that_blocks_costs_what_comes_after_it_and_no_more() -> None:
    """As if a process's files waited for a lock of a stuck one."""
    free = threading.Event()
    looks = ProcessActivity(lambda _pid, _seen: free.wait())  # pyright: ignore[reportArgumentType]
    try:
        for _ in range(6):  # more than there are threads
            seen = await looks.take({0: os.getpid(), 1: os.getppid()}, at_most_s=0.05)
            assert set(seen) in ({0, 1}, set())
    finally:
        free.set()


def test_what_was_seen_once_or_never() -> None:
    assert facts_of(None, None, apart_s=1.0) is None
    seen_once = ProcessSample(ProcessState.RUNNING, cpu_ticks=5)
    assert facts_of(seen_once, None, apart_s=1.0) == ProcessFacts(ProcessState.RUNNING)
    traced = facts_of(None, ProcessSample(ProcessState.TRACED, tracer_pid=os.getpid()), apart_s=1.0)
    assert traced is not None
    assert traced.tracer.endswith(f" (pid {os.getpid()})")


async def test_a_process_that_is_gone_is_left_out() -> None:
    ended = subprocess.Popen(["true"])  # noqa: ASYNC220 ends at once
    ended.wait()
    assert await ProcessActivity().take({0: ended.pid}, at_most_s=5) == {}
    assert not is_stopped(ended.pid)
