"""The page can't be used against its reader, and stamps that can't be true change nothing."""

from __future__ import annotations

import mmap
import os
import struct
import time

import pytest
from holdfast_wire import page_layout
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from supervisor.edges.workers.channel import worker_frames as frames
from supervisor.edges.workers.channel.progress_page_reader import (
    CLOCK_TOLERANCE_NS,
    NS_PER_S,
    ProgressPage,
    RawStamps,
    TrueStamps,
    stamps_from_frame,
)

NOW_NS = 1_000 * NS_PER_S
GOOD = RawStamps(NOW_NS - 50, NOW_NS - 40, 7, NOW_NS - 30, True, 3, ((0, NOW_NS - 20),))


def _stamps(*, exact: bool = True) -> TrueStamps:
    stamps = TrueStamps(("step", "eval"), exact=exact)
    stamps.take(GOOD, now_ns=NOW_NS)
    return stamps


def test_a_page_is_sealed_versioned_and_read_as_written():
    mine = ProgressPage()
    with pytest.raises(OSError, match=r"."):
        os.ftruncate(mine.fd, 0)
    with pytest.raises(OSError, match=r"."):
        os.ftruncate(mine.fd, 2 * page_layout.PAGE_BYTES)
    theirs = mmap.mmap(mine.fd, page_layout.PAGE_BYTES)
    assert struct.unpack_from("=q", theirs, page_layout.WORD_LAYOUT * 8) == (page_layout.LAYOUT_VERSION,)
    mine.close_descriptor()
    words = memoryview(theirs).cast("q")
    words[page_layout.WORD_HEARTBEATS] = 12
    words[page_layout.WORD_FIRST_STEP_SEEN] = 1
    words[page_layout.SECTION_SLOTS_START + 1] = 99
    words[page_layout.SECTION_SLOTS_START + 2] = 98  # beyond this client's slots
    raw = mine.read(2)
    assert (raw.heartbeats, raw.first_step_seen, raw.slots) == (12, True, ((1, 99),))
    mine.close()
    mine.close_descriptor()
    words[page_layout.WORD_HEARTBEATS] = 13  # the worker's own mapping outlives ours
    words.release()
    theirs.close()


def test_the_silence_of_a_rank_that_is_only_in_a_wrapped_call_has_not_begun():
    stamps = TrueStamps(("step",), exact=True)
    stamps.take(RawStamps(0, 0, 0, 0, False, 0, ()), now_ns=NOW_NS)
    progress = stamps.progress(read_at_s=7.0)
    assert (progress.initialised_at_s, progress.out_of_section_since_s, progress.heartbeat_at_s) == (7.0, 7.0, None)
    assert (progress.read_at_s, stamps.ignored) == (7.0, 0)


def test_a_rank_that_is_only_in_a_wrapped_call_is_outside_of_no_section():
    told = frames.Progress(None, None, 0, NOW_NS - 5, False, 0, ())
    for raw in (RawStamps(0, 0, 0, 5, False, 0, ()), stamps_from_frame(told, now_ns=NOW_NS)):
        assert (raw.initialised_ns, raw.out_of_section_since_ns) == (0, 5)
        stamps = TrueStamps(("step",), exact=True)
        stamps.take(raw, now_ns=NOW_NS)
        progress = stamps.progress(read_at_s=7.0)
        assert (progress.initialised_at_s, progress.out_of_section_since_s) == (7.0, 7.0)


@pytest.mark.parametrize(
    "lie",
    [
        {"heartbeat_ns": NOW_NS + 2 * CLOCK_TOLERANCE_NS},
        {"heartbeat_ns": -1},
        {"heartbeat_ns": 1},
        {"heartbeat_ns": 0},
        {"heartbeats": 3},
        {"heartbeats": 1 << 60},
        {"initialised_ns": 2**63 - 1},
        {"out_of_section_since_ns": NOW_NS - 31},
        {"steps_since_first": -(1 << 60)},
        {"slots": ((0, NOW_NS * 2),)},
        {"slots": ((0, -5),)},
        {"slots": ((0, NOW_NS - 20), (9, NOW_NS))},
    ],
)
def test_a_lie_is_ignored_and_counted_and_the_truth_stands(lie: dict[str, object]):
    stamps = _stamps()
    before = stamps.progress(read_at_s=0)
    stamps.take(replace(GOOD, **lie), now_ns=NOW_NS)  # pyright: ignore[reportArgumentType]
    assert stamps.progress(read_at_s=0) == before
    assert stamps.ignored == 1


def test_a_stamp_just_ahead_of_our_clock_is_now():
    stamps = _stamps()
    stamps.take(replace(GOOD, heartbeat_ns=NOW_NS + 10), now_ns=NOW_NS)
    assert stamps.progress(read_at_s=0).heartbeat_at_s == NOW_NS / NS_PER_S


def test_a_closed_section_is_closed_and_opens_anew():
    stamps = _stamps()
    stamps.take(replace(GOOD, slots=()), now_ns=NOW_NS)
    assert stamps.progress(read_at_s=0).open_sections == ()
    stamps.take(replace(GOOD, slots=((0, NOW_NS - 21),)), now_ns=NOW_NS)  # older than its last opening
    assert stamps.progress(read_at_s=0).open_sections == ()
    stamps.take(replace(GOOD, slots=((0, NOW_NS - 1),)), now_ns=NOW_NS)
    assert stamps.progress(read_at_s=0).open_sections == (("step", (NOW_NS - 1) / NS_PER_S),)


words = st.integers(-(2**63), 2**63 - 1)


@given(words, words, words, words, st.booleans(), words, st.lists(st.tuples(st.integers(0, 300), words), max_size=9))
def test_no_page_content_makes_impossible_progress(
    initialised: int, heartbeat: int, count: int, since: int, seen: bool, steps: int, slots: list[tuple[int, int]]
):
    stamps = _stamps()
    stamps.take(RawStamps(initialised, heartbeat, count, since, seen, steps, tuple(slots)), now_ns=NOW_NS)
    progress = stamps.progress(read_at_s=0)
    now_s = NOW_NS / NS_PER_S
    assert progress.heartbeat_at_s is not None
    assert (NOW_NS - 40) / NS_PER_S <= progress.heartbeat_at_s <= now_s
    assert (NOW_NS - 50) / NS_PER_S <= progress.initialised_at_s <= now_s
    assert progress.heartbeats >= 7
    assert all(name in ("step", "eval") and 0 < at_s <= now_s for name, at_s in progress.open_sections)


def test_ages_become_stamps_at_receipt_and_may_jitter():
    told = frames.Progress(100, 90, 7, 80, False, 0, ((1, 70),))
    raw = stamps_from_frame(told, now_ns=NOW_NS)
    assert raw == RawStamps(NOW_NS - 100, NOW_NS - 90, 7, NOW_NS - 80, False, 0, ((1, NOW_NS - 70),))
    stamps = _stamps(exact=False)
    stamps.take(replace(GOOD, heartbeat_ns=GOOD.heartbeat_ns - 1000), now_ns=NOW_NS)
    assert stamps.ignored == 0
    stamps.take(stamps_from_frame(replace(told, heartbeat_age_ns=-(2**62)), now_ns=NOW_NS), now_ns=NOW_NS)
    assert stamps.ignored == 1


def test_a_read_is_quick_and_a_racing_writer_is_seen_truthfully():
    """A rank that closes and opens sections as fast as possible never looks as if it were outside for long."""
    import threading

    mine = ProgressPage()
    theirs = mmap.mmap(mine.fd, page_layout.PAGE_BYTES)
    stop = threading.Event()

    def write() -> None:
        shared = memoryview(theirs).cast("q")
        slot = page_layout.SECTION_SLOTS_START
        while not stop.is_set():
            shared[slot] = time.monotonic_ns()
            shared[page_layout.WORD_OUT_OF_SECTION_SINCE_NS] = time.monotonic_ns()
            shared[slot] = 0
        shared.release()

    began_ns = time.monotonic_ns()
    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(3000):
            before_ns = time.monotonic_ns()
            raw = mine.read(1)
            if not raw.slots and before_ns - began_ns > NS_PER_S // 10:
                assert raw.out_of_section_since_ns > before_ns - NS_PER_S  # closed just now, not long ago
    finally:
        stop.set()
        thread.join()
        mine.close()
        theirs.close()
