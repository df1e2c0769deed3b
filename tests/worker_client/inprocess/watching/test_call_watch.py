"""What does the page contain about a wrapped call, moment by moment?"""

from __future__ import annotations

import os
import time
from time import monotonic_ns

from holdfast_wire import page as layout

from worker_client.inprocess.progress_watchdog import ProgressWatchdog
from worker_client.inprocess.watching.call_watch import CallWatch
from worker_client.progress_page import ProgressPage

WAIT_S = 20.0


def word(watch: CallWatch, number: int) -> int:
    return watch.words[number]


def is_on(watch: CallWatch) -> bool:
    return word(watch, layout.WORD_WATCH) == layout.WATCH_ON


def test_the_limits_hold_between_on_and_off():
    changes: list[int] = []
    watch = CallWatch(lambda: changes.append(word(watch, layout.WORD_WATCH)))
    before_ns = monotonic_ns()
    watch.on()
    assert word(watch, layout.WORD_WATCH_SINCE_NS) >= before_ns
    watch.off()
    assert changes == [layout.WATCH_ON, layout.WATCH_OFF]


def test_protection_is_disabled_until_the_outermost_end_or_the_next_iteration():
    watch = CallWatch()
    watch.on()
    watch.disable()
    watch.disable()
    watch.enable()
    assert not is_on(watch)
    before_ns = monotonic_ns()
    watch.enable()
    assert is_on(watch)
    assert word(watch, layout.WORD_WATCH_SINCE_NS) >= before_ns  # the silence inside does not count
    watch.enable()
    watch.disable()
    assert not is_on(watch)
    watch.on()
    assert is_on(watch)


def test_an_unwinding_stands_whatever_the_function_says_in_its_cleanup():
    watch = CallWatch()
    watch.on()
    watch.disable()
    watch.unwind()
    since_ns = word(watch, layout.WORD_WATCH_SINCE_NS)
    watch.enable()
    watch.off()
    assert word(watch, layout.WORD_WATCH) == layout.WATCH_UNWINDING
    assert word(watch, layout.WORD_WATCH_SINCE_NS) == since_ns
    watch.on()
    assert is_on(watch)
    watch.unwind()
    watch.end()
    assert word(watch, layout.WORD_WATCH) == layout.WATCH_OFF


def test_a_new_page_has_what_the_old_one_had_and_counts_from_now():
    watch = CallWatch()
    watch.ticks_every(7)
    watch.on()
    watch.words[layout.WORD_PING_NS] = monotonic_ns()
    page = ProgressPage.private()
    before_ns = monotonic_ns()
    watch.adopt(page)
    assert page.words[layout.WORD_WATCH] == layout.WATCH_ON
    assert page.words[layout.WORD_TICK_INTERVAL_NS] == 7
    assert page.words[layout.WORD_TICK_NS] >= before_ns
    assert page.words[layout.WORD_WATCH_SINCE_NS] >= before_ns
    assert page.words[layout.WORD_PING_NS] == 0
    watch.leave()
    assert page.words[layout.WORD_WATCH] == layout.WATCH_OFF
    assert watch.words is not page.words


def test_a_forked_child_writes_nothing_into_its_parents_page():
    watch = CallWatch()
    page = ProgressPage.private()
    watch.adopt(page)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if watch.words is not page.words else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert watch.words is page.words


def test_the_watchdog_sees_whether_the_main_thread_executes_bytecode():
    watch = CallWatch()
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


def test_one_that_was_never_started_can_be_stopped():
    ProgressWatchdog(CallWatch(), 0.5, soft_timeout_s=60.0).stop()
