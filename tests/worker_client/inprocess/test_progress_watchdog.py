"""Does the watchdog see that the main thread stands still, and when is a timestamp too old?"""

from __future__ import annotations

import time
from datetime import timedelta
from time import monotonic, monotonic_ns

import pytest
from holdfast_wire import page_layout as layout

from supervisor.edges.workers.channel.progress_page_reader import TICK_INTERVAL_NS_MAX
from worker_client.inprocess.progress_watchdog import ProgressWatchdog, Timestamp
from worker_client.inprocess.watching.main_thread_watch import MainThreadWatch

AGE_S = 1000.0
WAIT_S = 20.0


def word(watch: MainThreadWatch, number: int) -> int:
    return watch.words[number]


@pytest.mark.parametrize(
    ("auto_age_s", "manual_age_s", "is_timed_out"),
    [(0, 0, False), (0, None, False), (AGE_S, None, True), (0, AGE_S, True), (AGE_S, 0, True), (None, None, False)],
)
def test_either_sign_that_is_too_old(auto_age_s: float | None, manual_age_s: float | None, is_timed_out: bool):
    now_s = monotonic()
    stamps = [None if age_s is None else now_s - age_s for age_s in (auto_age_s, manual_age_s)]
    assert Timestamp(*stamps).is_timed_out(timedelta(seconds=AGE_S / 2)) is is_timed_out
    assert Timestamp(*stamps).is_timed_out(timedelta(seconds=2 * AGE_S)) is False


def test_the_watchdog_sees_whether_the_main_thread_executes_bytecode():
    watch = MainThreadWatch()
    watchdog = ProgressWatchdog(watch, 1.0, soft_timeout_s=1.0)
    watchdog.start()
    try:
        assert word(watch, layout.WORD_TICK_INTERVAL_NS) == 20_000_000
        until_s = time.monotonic() + WAIT_S
        for _ in range(3):  # a loop in Python makes progress; the second tick sees it
            first_ns = word(watch, layout.WORD_TICK_NS)
            while word(watch, layout.WORD_TICK_NS) == first_ns:
                assert time.monotonic() < until_s
        assert word(watch, layout.WORD_PENDING_SINCE_NS) == 0
        before_ns = monotonic_ns()
        time.sleep(0.2)  # in C, without the GIL
        stuck_ns = word(watch, layout.WORD_PENDING_SINCE_NS)
        assert stuck_ns == 0 or before_ns - 100_000_000 <= stuck_ns <= before_ns + 150_000_000
        assert stuck_ns, "a main thread that sleeps executes nothing"
    finally:
        watchdog.stop()
        watchdog.stop()
    last_ns = word(watch, layout.WORD_TICK_NS)
    time.sleep(0.05)
    assert word(watch, layout.WORD_TICK_NS) == last_ns


@pytest.mark.parametrize(
    ("interval_s", "soft_timeout_s", "applied_s"),
    [(0.0, 60.0, 0.02), (-5.0, 60.0, 0.02), (0.1, 60.0, 0.1), (1.0, 60.0, 0.25), (1e6, 1e7, 60.0)],
)
def test_any_interval_becomes_one_that_costs_little_and_that_the_supervisor_believes(
    interval_s: float, soft_timeout_s: float, applied_s: float
):
    watch = MainThreadWatch()
    watchdog = ProgressWatchdog(watch, interval_s, soft_timeout_s)
    watchdog.start()
    watchdog.stop()
    assert word(watch, layout.WORD_TICK_INTERVAL_NS) == applied_s * 1e9 <= TICK_INTERVAL_NS_MAX


def test_one_that_was_never_started_can_be_stopped():
    ProgressWatchdog(MainThreadWatch(), 0.5, soft_timeout_s=60.0).stop()
