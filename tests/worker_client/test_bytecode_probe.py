"""Is a main thread that executes nothing told from one that works? The main thread of this very process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from worker_client import bytecode_probe
from worker_client.bytecode_probe import BytecodeProbe

WAIT_S = 30.0


def elsewhere(run: Callable[[], None]) -> None:
    """Runs it on a thread while the main thread waits for a lock and executes nothing."""
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def work() -> None:
    """Executes bytecode, between which pending calls run."""
    sum(number for number in range(10_000))


def test_a_main_thread_that_waits_has_executed_nothing_since_a_look_before():
    mark, seen = BytecodeProbe(), list[int]()

    def look() -> None:
        until_s = time.monotonic() + WAIT_S
        asked_ns = 0
        while not seen or not seen[-1]:  # until the main thread has come to wait
            assert time.monotonic() < until_s
            asked_ns += 1
            seen.append(mark.look(asked_ns))
        seen.append(mark.look(asked_ns + 1))

    elsewhere(look)
    assert seen[0] == 0, "the first look only asks"
    assert seen[-1] == seen[-2] < len(seen), "since the same look"
    work()
    elsewhere(lambda: seen.append(mark.look(9_000)))
    assert seen[-1] == 0, "it has worked since"
    work()


def test_all_calls_of_the_process_share_one_mark():
    """A pending call may outlive the one that made it, and its memory must not."""
    assert bytecode_probe.bytecode_probe() is bytecode_probe.bytecode_probe()
