"""Are all ranks measured over windows of the same length, whatever comes late or starts again?"""

from __future__ import annotations

import pytest

from supervisor.core.stragglers.section_windows import MISSED_ROUNDS_MAX, WINDOW_TIMES, SectionWindows

PATIENCE_S = 30.0


def _is_due(windows: SectionWindows, now_s: float = 0.0) -> bool:
    return windows.is_due(now_s, patience_s=PATIENCE_S)


def test_a_round_is_over_once_every_rank_has_closed_the_section_often_enough():
    windows = SectionWindows()
    for rank in range(3):
        windows.take(rank, 20, 9.0, now_s=0.0)  # What was before does not count: it may have been a warm-up.
    windows.take(0, 20 + WINDOW_TIMES, 10.0, now_s=1.0)
    windows.take(1, 20 + 2 * WINDOW_TIMES, 11.0, now_s=1.0)
    windows.take(2, 20 + WINDOW_TIMES - 1, 10.0, now_s=1.0)
    assert not _is_due(windows, 1.0)
    windows.take(2, 20 + WINDOW_TIMES, 10.5, now_s=2.0)
    assert _is_due(windows, 2.0)
    ranks, means_s = windows.close_round()
    assert ranks == [0, 1, 2]
    assert means_s == pytest.approx([0.2, 0.2, 0.3])
    assert not _is_due(windows, 2.0)
    for rank in range(3):
        windows.take(rank, 60, 30.0, now_s=3.0)
    assert _is_due(windows, 3.0)
    assert windows.close_round()[1] == pytest.approx([20 / 35, 19 / 30, 19.5 / 35])


def test_one_rank_alone_is_compared_with_nobody():
    windows = SectionWindows()
    windows.take(4, 0, 0.0, now_s=0.0)
    windows.take(4, 50, 5.0, now_s=1.0)
    assert not _is_due(windows, 1e9)


def test_a_rank_that_runs_the_section_seldom_is_not_waited_for_for_long():
    windows = SectionWindows()
    for rank in range(3):
        windows.take(rank, 0, 0.0, now_s=0.0)
    for number in range(1, MISSED_ROUNDS_MAX + 1):
        for rank in (0, 1):
            windows.take(rank, 10 * number, 1.0 * number, now_s=100.0 * number)
        assert not _is_due(windows, 100.0 * number + PATIENCE_S - 1)
        assert _is_due(windows, 100.0 * number + PATIENCE_S)
        assert windows.close_round()[0] == [0, 1]
    for rank in (0, 1):
        windows.take(rank, 100, 10.0, now_s=1000.0)
    assert _is_due(windows, 1000.0), "it is forgotten"


def test_a_count_that_goes_back_begins_a_new_window():
    windows = SectionWindows()
    for rank in (0, 1):
        windows.take(rank, 0, 0.0, now_s=0.0)
        windows.take(rank, 10, 1.0, now_s=1.0)
    assert _is_due(windows)
    windows.take(1, 2, 0.4, now_s=2.0)
    assert not _is_due(windows)
    windows.take(1, 2 + WINDOW_TIMES, 0.4 + WINDOW_TIMES, now_s=3.0)
    assert windows.close_round() == ([0, 1], pytest.approx([0.1, 1.0]))
