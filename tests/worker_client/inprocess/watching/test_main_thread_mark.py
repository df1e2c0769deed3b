"""Is a main thread that executes nothing told from one that works? The main thread of this very process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from worker_client.inprocess.watching import main_thread_mark
from worker_client.inprocess.watching.main_thread_mark import MainThreadMark

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


def test_a_main_thread_that_waits_has_executed_nothing_since_the_look_before():
    mark, seen = MainThreadMark(), list[int]()

    elsewhere(lambda: seen.extend(mark.look(now_ns) for now_ns in (10, 20, 30)))
    assert seen == [0, 10, 10], "the first look only asks"
    work()
    elsewhere(lambda: seen.append(mark.look(40)))
    assert seen[-1] == 0, "it has worked since"
    work()


def test_all_calls_of_the_process_share_one_mark():
    """A pending call may outlive the one that made it, and its memory must not."""
    assert main_thread_mark.main_thread_mark() is main_thread_mark.main_thread_mark()
