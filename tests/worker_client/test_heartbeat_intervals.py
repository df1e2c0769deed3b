"""When was the last heartbeat, and what was the longest silence?"""

from __future__ import annotations

import pytest
from holdfast_wire import page_layout as layout

from tests.worker_client.recorded_page import recorded
from worker_client import heartbeat_intervals
from worker_client.heartbeat_intervals import HeartbeatIntervals
from worker_client.progress_page_writer import Carried, ProgressPage


def test_a_heartbeat_is_two_stores():
    progress, recorder = recorded()
    recorder.stores.clear()
    progress.heartbeats.beat()
    assert recorder.stores == [layout.WORD_HEARTBEAT_NS, layout.WORD_HEARTBEATS]


class Clock:
    now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(heartbeat_intervals, "monotonic_ns", clock)
    return clock


def beats(clock: Clock, *times_ns: int) -> HeartbeatIntervals:
    mine = HeartbeatIntervals(ProgressPage.private(), lambda: None)
    for clock.now_ns in times_ns:
        mine.beat()
    return mine


def test_the_silence_before_the_first_one_is_measured_apart(clock: Clock):
    mine = beats(clock, 1_300, 1_310, 1_360, 1_370)
    assert (mine.first_gap_ns, mine.longest_gap_ns, mine.count) == (300, 50, 4)
    mine.begin(2_000)
    assert (mine.first_gap_ns, mine.longest_gap_ns) == (0, 0)
    clock.now_ns = 2_020
    mine.beat()
    assert mine.first_gap_ns == 20


def test_only_the_next_one_is_attended(clock: Clock):
    roused: list[int] = []
    mine = HeartbeatIntervals(ProgressPage.private(), lambda: roused.append(clock.now_ns))
    for clock.now_ns in (10, 20, 30):
        mine.beat()
        if clock.now_ns == 20:
            mine.attends = True
    assert roused == [10, 30]


def test_a_new_page_has_the_last_one_shifted_by_the_time_without_a_connection(clock: Clock):
    mine, page = beats(clock, 1_100, 1_200), ProgressPage.private()
    mine.move(page, Carried(lost_ns=1_500, now_ns=9_000))
    shown = page.snapshot()
    assert (shown.heartbeat_ns, shown.heartbeats) == (8_700, 2), "300 ns of silence, as before"
    clock.now_ns = 9_100
    mine.beat()
    assert (page.snapshot().heartbeat_ns, page.snapshot().heartbeats) == (9_100, 3)


def test_a_rank_that_has_not_beaten_leaves_the_page_as_it_is(clock: Clock):
    page = ProgressPage.private()
    beats(clock).move(page, Carried(1_500, 9_000))
    assert (page.snapshot().heartbeat_ns, page.snapshot().heartbeats) == (0, 0)
