"""Does a wait go on when a signal handler raises in it, and end when it should? Real signals, on the main thread."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from worker_client.inprocess.coordinating.guarded_condition import GuardedCondition

SOON_S = 20.0


@pytest.fixture
def handle() -> Iterator[Callable[[BaseException], list[BaseException]]]:
    """Makes the handler of SIGUSR1 raise that error inside of a wait, and returns those that it has raised."""
    before = signal.getsignal(signal.SIGUSR1)

    def install(error: BaseException) -> list[BaseException]:
        raised: list[BaseException] = []

        def fail(_: int, interrupted: FrameType | None) -> None:
            while interrupted is not None and interrupted.f_code is not threading.Condition.wait.__code__:
                interrupted = interrupted.f_back
            if interrupted is not None:
                raised.append(error)
                raise error

        signal.signal(signal.SIGUSR1, fail)
        return raised

    yield install
    signal.signal(signal.SIGUSR1, before)


def strike(stop: threading.Event, interval_s: float = 0.02) -> threading.Thread:
    """Sends the signal to the main thread again and again."""

    def run() -> None:
        while not stop.wait(interval_s):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_an_exception_of_a_handler_ends_no_wait(
    handle: Callable[[BaseException], list[BaseException]], caplog: pytest.LogCaptureFixture
):
    raised, changed, stop = handle(RuntimeError("DataLoader worker is killed")), GuardedCondition(), threading.Event()
    striking = strike(stop)
    try:
        with changed:
            is_over = changed.wait_until(lambda: len(raised) >= 3, SOON_S)
            stop.set()
            assert changed.is_held_here()
    finally:
        stop.set()
        striking.join()
    assert is_over
    assert not changed.is_held_here()
    assert "a signal handler raised" in caplog.text
    assert "DataLoader worker is killed" in caplog.text


def test_the_limit_of_a_wait_holds_however_often_a_handler_raises(
    handle: Callable[[BaseException], list[BaseException]],
):
    raised, changed, stop = handle(RuntimeError("by intention")), GuardedCondition(), threading.Event()
    striking = strike(stop)
    began_s = time.monotonic()
    try:
        with changed:
            is_over = changed.wait_until(lambda: False, 0.3)
            stop.set()
    finally:
        stop.set()
        striking.join()
    assert not is_over
    assert raised
    assert 0.3 <= time.monotonic() - began_s < SOON_S


def test_what_ends_the_process_ends_the_wait(handle: Callable[[BaseException], list[BaseException]]):
    changed, stop = GuardedCondition(), threading.Event()
    handle(KeyboardInterrupt())
    timer = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident or 0, signal.SIGUSR1))
    timer.start()
    with pytest.raises(KeyboardInterrupt), changed:
        changed.wait_until(stop.is_set, SOON_S)
    timer.join()


def test_a_condition_knows_whether_this_thread_has_it():
    changed = GuardedCondition()
    seen: list[bool] = []
    with changed:
        other = threading.Thread(target=lambda: seen.append(changed.is_held_here()))
        other.start()
        other.join()
        seen.append(changed.is_held_here())
    assert [*seen, changed.is_held_here()] == [False, True, False]
