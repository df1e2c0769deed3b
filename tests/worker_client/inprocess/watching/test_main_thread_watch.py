"""What does the page contain about a wrapped call, moment by moment?"""

from __future__ import annotations

import os
from time import monotonic_ns

from holdfast_wire import page_layout as layout

from worker_client.inprocess.watching.main_thread_watch import MainThreadWatch
from worker_client.progress_page_writer import ProgressPage

WAIT_S = 20.0


def word(watch: MainThreadWatch, number: int) -> int:
    return watch.words[number]


def is_on(watch: MainThreadWatch) -> bool:
    return word(watch, layout.WORD_WATCH) == layout.WATCH_ON


def test_the_limits_hold_between_on_and_off():
    changes: list[int] = []
    watch = MainThreadWatch(lambda: changes.append(word(watch, layout.WORD_WATCH)))
    before_ns = monotonic_ns()
    watch.on()
    assert word(watch, layout.WORD_WATCH_SINCE_NS) >= before_ns
    watch.off()
    assert changes == [layout.WATCH_ON, layout.WATCH_OFF]


def test_protection_is_disabled_until_the_outermost_end_or_the_next_iteration():
    watch = MainThreadWatch()
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
    watch = MainThreadWatch()
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
    watch = MainThreadWatch()
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
    watch = MainThreadWatch()
    page = ProgressPage.private()
    watch.adopt(page)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if watch.words is not page.words else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert watch.words is page.words
