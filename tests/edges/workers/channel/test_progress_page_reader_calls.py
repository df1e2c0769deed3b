"""The Wrapper's words of the page: when did the main thread last make progress, and what is not trusted?"""

from __future__ import annotations

import mmap

from holdfast_wire import page_layout
from msgspec.structs import replace

from supervisor.core.facts import CallWatch, WatchMode
from supervisor.edges.workers.channel import worker_frames as frames
from supervisor.edges.workers.channel.progress_page_reader import (
    NS_PER_S,
    ProgressPage,
    RawStamps,
    RawWatch,
    TrueStamps,
    stamps_from_frame,
)

NOW_NS = 1_000 * NS_PER_S
RAW = RawStamps(NOW_NS - 50, 0, 0, NOW_NS - 30, False, 0, ())
WATCH = RawWatch(page_layout.WATCH_ON, NOW_NS - 9 * NS_PER_S, NOW_NS - NS_PER_S, NS_PER_S // 4, 0, 0)


def taken(*watches: RawWatch | None) -> TrueStamps:
    stamps = TrueStamps((), exact=True)
    for each in watches:
        stamps.take(replace(RAW, call_watch=each), now_ns=NOW_NS)
    return stamps


def test_after_a_tick_progress_counts_until_the_next_one_is_due() -> None:
    assert taken(WATCH).progress(read_at_s=1000.0).call_watch == CallWatch(WatchMode.ON, 991.0, 999.25, None)


def test_where_nothing_was_executed_it_counts_from_the_first_tick_that_saw_it() -> None:
    pending = replace(WATCH, pending_since_ns=NOW_NS - 5 * NS_PER_S, ping_ns=NOW_NS - 2 * NS_PER_S)
    assert taken(pending).call_watch == CallWatch(WatchMode.ON, 991.0, 995.0, 998.0)


def test_off_is_nothing_to_watch() -> None:
    assert taken(WATCH, replace(WATCH, watch=page_layout.WATCH_OFF)).call_watch is None
    assert taken(WATCH, None).call_watch is None


def test_what_can_not_be_true_is_counted_and_changes_nothing() -> None:
    for lie in (
        replace(WATCH, watch=7),
        replace(WATCH, since_ns=0),
        replace(WATCH, since_ns=NOW_NS + 60 * NS_PER_S),
        replace(WATCH, tick_ns=-1),
        replace(WATCH, tick_interval_ns=3600 * NS_PER_S),
        replace(WATCH, pending_since_ns=NOW_NS + 60 * NS_PER_S),
    ):
        stamps = taken(WATCH, lie)
        assert stamps.call_watch == taken(WATCH).call_watch
        assert stamps.ignored == 1


def test_a_page_is_read_as_the_wrapper_writes_it() -> None:
    mine = ProgressPage()
    theirs = memoryview(mmap.mmap(mine.fd, page_layout.PAGE_BYTES)).cast("q")
    assert mine.read(0).call_watch is None
    values = {
        page_layout.WORD_WATCH: page_layout.WATCH_UNWINDING,
        page_layout.WORD_WATCH_SINCE_NS: 11,
        page_layout.WORD_TICK_NS: 12,
        page_layout.WORD_TICK_INTERVAL_NS: 13,
        page_layout.WORD_PENDING_SINCE_NS: 14,
        page_layout.WORD_PING_NS: 15,
    }
    for word, value in values.items():
        theirs[word] = value
    assert mine.read(0).call_watch == RawWatch(page_layout.WATCH_UNWINDING, 11, 12, 13, 14, 15)
    theirs.release()
    mine.close()


def test_a_frame_says_the_same_as_ages() -> None:
    told = frames.Progress(50, None, 0, 30, False, 0, (), frames.CallWatch(page_layout.WATCH_ON, 40, 20, None, 10))
    raw = stamps_from_frame(told, now_ns=NOW_NS).call_watch
    assert raw == RawWatch(page_layout.WATCH_ON, NOW_NS - 40, NOW_NS - 20, 0, 0, NOW_NS - 10)
    assert stamps_from_frame(replace(told, call_watch=None), now_ns=NOW_NS).call_watch is None
