"""Which page has what a rank has done, also while pages change?"""

from __future__ import annotations

import pytest
from holdfast_wire import page_layout as layout

from tests.worker_client.recorded_page import NAMES, Recorder, recorded
from worker_client import heartbeat_intervals, sections
from worker_client import rank_progress as progress_module
from worker_client.progress_page_writer import ProgressPage
from worker_client.rank_progress import Progress


def test_a_new_page_is_complete_before_it_counts():
    progress, recorder = recorded()
    progress.heartbeats.beat()
    progress.sections.start("step")
    second = Recorder()
    progress.adopt(ProgressPage(second, is_shared=True), NAMES)  # pyright: ignore[reportArgumentType]
    assert second.stores[-1] == layout.WORD_INITIALISED_NS
    written = {
        layout.WORD_OUT_OF_SECTION_SINCE_NS, layout.WORD_STEPS_SINCE_FIRST, layout.WORD_FIRST_STEP_SEEN,
        layout.SECTION_SLOTS_START, layout.WORD_HEARTBEAT_NS, layout.WORD_HEARTBEATS, layout.WORD_INITIALISED_NS,
        layout.WORD_USE,
    }  # fmt: skip
    assert set(second.stores) == written
    assert layout.WORD_LAYOUT not in recorder.stores


def test_only_the_page_that_gets_the_stamps_is_current():
    """Another supervisor may have an earlier page, or that of a rank that has ended its monitoring."""
    progress, first = recorded()
    second = Recorder()
    progress.lose()
    assert first[layout.WORD_USE] == layout.USE_CURRENT
    progress.adopt(ProgressPage(second, is_shared=True), NAMES)  # pyright: ignore[reportArgumentType]
    assert (first[layout.WORD_USE], second[layout.WORD_USE]) == (layout.USE_LEFT, layout.USE_CURRENT)
    assert first.stores[-1] == layout.WORD_USE
    progress.leave()
    assert second[layout.WORD_USE] == layout.USE_LEFT
    progress.heartbeats.beat()
    assert second.stores[-1] == layout.WORD_USE


def test_a_forked_child_leaves_its_parents_page_current():
    progress, recorder = recorded()
    progress.detach()
    assert recorder[layout.WORD_USE] == layout.USE_CURRENT


def test_a_silence_goes_on_under_the_next_supervisor_and_the_time_between_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    now_ns = 1_000

    def clock() -> int:
        return now_ns

    for module in (progress_module, heartbeat_intervals, sections):
        monkeypatch.setattr(module, "monotonic_ns", clock)
    progress = Progress()
    progress.begin()
    progress.adopt(ProgressPage.private(), NAMES)
    now_ns = 2_000
    progress.heartbeats.beat()
    now_ns = 2_500
    progress.sections.start("setup")
    now_ns = 3_000
    progress.lose()
    now_ns = 7_000
    progress.lose()  # it is still away
    progress.sections.start("step")
    now_ns = 10_000
    page = ProgressPage.private()
    assert progress.adopt(page, NAMES)
    shown = page.snapshot()
    assert (shown.initialised_ns, shown.heartbeat_ns) == (8_000, 9_000)
    assert dict(shown.open_sections) == {0: 10_000, 1: 9_500}


def test_maxima_count_the_running_time_outside():
    progress = Progress()
    progress.begin()
    progress.adopt(ProgressPage.private(), NAMES)
    first = progress.maxima().out_of_section_s
    assert 0 < first < progress.maxima().out_of_section_s
    progress.sections.start("step")
    during = progress.maxima()
    assert during.out_of_section_s == progress.maxima().out_of_section_s
    assert during.sections_s == {"step": 0, "setup": 0, "checkpointing": 0}
    progress.sections.end("step")
    assert progress.maxima().sections_s["step"] > 0


def test_the_next_stamp_after_a_look_wakes_the_channel_once():
    woken: list[str] = []
    progress = Progress(wake=lambda: woken.append("woken"))
    progress.begin()
    progress.adopt(ProgressPage.private(), NAMES)
    progress.heartbeats.beat()
    assert woken == [], "nobody looks yet"
    assert progress.has_news
    progress.rearm()
    assert not progress.has_news
    progress.heartbeats.beat()
    progress.sections.start("step")
    assert woken == ["woken"]
    assert progress.has_news
    assert progress.rearm().heartbeats == 2
    progress.disarm()
    progress.sections.end("step")
    assert woken == ["woken"]


def test_a_begin_counts_once_and_a_page_that_was_there_before_shows_it():
    """A wrapped call may connect long before the script's first init."""
    progress, page = Progress(), ProgressPage.private()
    assert not progress.adopt(page, NAMES), "there was no connection before"
    assert page.snapshot().initialised_ns == 0
    progress.begin()
    began_ns = page.snapshot().initialised_ns
    assert began_ns > 0
    progress.begin()
    assert page.snapshot().initialised_ns == began_ns


def test_after_the_end_stamps_stay_here():
    progress, page = Progress(), ProgressPage.private()
    progress.begin()
    progress.adopt(page, NAMES)
    progress.leave()
    before = list(page.words)
    progress.heartbeats.beat()
    progress.sections.start("step")
    assert list(page.words) == before
    assert progress.snapshot().heartbeats == 1
