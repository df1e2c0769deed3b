"""A call that does not return is abandoned, delays nobody else, and its late result is discarded."""

from __future__ import annotations

import subprocess
import sys
import threading

import anyio
import pytest

from supervisor.edges.machine.own_process import side_threads
from supervisor.edges.machine.own_process.side_threads import SideThreads, StuckError
from tests.edges.workers.worker_side import until
from tests.settling import settled


async def test_a_result_and_an_error_come_back() -> None:
    threads = SideThreads(stuck_max=1)
    assert await threads.call(lambda: 7, timeout_s=10, discard=print) == 7
    with pytest.raises(FileNotFoundError):
        await threads.call(lambda: open("/nonexistent"), timeout_s=10, discard=print)  # noqa: SIM115
    assert threads.stuck == 0


async def test_what_comes_too_late_is_discarded_and_more_than_so_many_are_refused() -> None:
    threads = SideThreads(stuck_max=1)
    go_on, discarded = threading.Event(), threading.Event()

    def late() -> str:
        assert go_on.wait(20)
        return "late"

    def discard(result: str) -> None:
        assert result == "late"
        discarded.set()

    with pytest.raises(StuckError, match=r"has not ended within 0\.05 s"):
        await threads.call(late, timeout_s=0.05, discard=discard)
    with pytest.raises(StuckError, match="1 earlier calls are stuck"):
        await threads.call(late, timeout_s=10, discard=discard)
    go_on.set()
    assert await anyio.to_thread.run_sync(discarded.wait, 10)
    assert await threads.call(lambda: 8, timeout_s=10, discard=print) == 8


async def test_one_key_takes_one_of_the_calls_that_may_be_stuck() -> None:
    threads = SideThreads(stuck_max=2)
    go_on, discarded = threading.Event(), threading.Event()
    with pytest.raises(StuckError, match="has not ended"):
        await threads.call(lambda: go_on.wait(20), timeout_s=0.05, discard=lambda _: discarded.set(), key="a")
    for _ in range(3):
        with pytest.raises(StuckError, match="an earlier call for it is stuck"):
            await threads.call(lambda: 7, timeout_s=10, discard=print, key="a")
    assert threads.stuck == 1
    assert await threads.call(lambda: 8, timeout_s=10, discard=print, key="b") == 8
    go_on.set()
    assert await anyio.to_thread.run_sync(discarded.wait, 10)
    assert await threads.call(lambda: 7, timeout_s=10, discard=print, key="a") == 7


async def test_one_that_is_cancelled_is_abandoned_too() -> None:
    threads = SideThreads(stuck_max=1)
    go_on = threading.Event()
    with anyio.move_on_after(0.05):
        await threads.call(lambda: go_on.wait(20), timeout_s=20, discard=print)
    assert threads.stuck == 1
    go_on.set()


async def test_a_result_that_is_there_when_the_call_is_cancelled_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has returned, and the loop has not run since."""
    threads = SideThreads(stuck_max=1)
    go_on, has_returned = threading.Event(), threading.Event()
    discarded: list[str] = []
    wake = side_threads._Call[str]._wake  # pyright: ignore[reportPrivateUsage]

    def wake_later(call: side_threads._Call[str]) -> None:  # pyright: ignore[reportPrivateUsage]
        wake(call)
        has_returned.set()

    monkeypatch.setattr(side_threads._Call, "_wake", wake_later)  # pyright: ignore[reportPrivateUsage]

    def work() -> str:
        assert go_on.wait(20)
        return "a process"

    async def call() -> None:
        await threads.call(work, timeout_s=20, discard=discarded.append)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await settled()
        go_on.set()
        assert has_returned.wait(20)
        tasks.cancel_scope.cancel()
    await until(lambda: discarded == ["a process"])
    assert threads.stuck == 0


STUCK = """
import anyio, threading
from supervisor.edges.machine.own_process.side_threads import SideThreads
async def main():
    await SideThreads(stuck_max=1).call(threading.Event().wait, timeout_s=0.05, discard=print)
anyio.run(main)
"""


def test_a_stuck_call_does_not_hold_up_the_end_of_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], timeout=20, capture_output=True, check=False)
    assert b"StuckError" in done.stderr


async def test_without_a_thread_it_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="ulimit -u"):
        await SideThreads(stuck_max=1).call(lambda: 7, timeout_s=10, discard=print)
