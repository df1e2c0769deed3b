"""The order of the writes: a reader at any instant sees a state that was true."""

from __future__ import annotations

import os

import pytest
from holdfast_wire import page as layout

from worker_client import heartbeats, sections
from worker_client import progress as progress_module
from worker_client.progress import Progress
from worker_client.progress_page import PageUnusableError, ProgressPage

NAMES = ("step", "setup", "checkpointing")


class _Recorder:
    """Replaces the words of a page and notes each write."""

    def __init__(self) -> None:
        self.values = [0] * layout.PAGE_WORDS
        self.stores: list[int] = []

    def __setitem__(self, word: int, value: int) -> None:
        self.values[word] = value
        self.stores.append(word)

    def __getitem__(self, word: int) -> int:
        return self.values[word]


def _recorded() -> tuple[Progress, _Recorder]:
    recorder = _Recorder()
    progress = Progress()
    progress.begin()
    progress.adopt(ProgressPage(recorder, is_shared=True), NAMES)  # pyright: ignore[reportArgumentType]
    return progress, recorder


def test_a_new_page_is_complete_before_it_counts():
    progress, recorder = _recorded()
    progress.heartbeats.beat()
    progress.sections.start("step")
    second = _Recorder()
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
    progress, first = _recorded()
    second = _Recorder()
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
    progress, recorder = _recorded()
    progress.detach()
    assert recorder[layout.WORD_USE] == layout.USE_CURRENT


def test_a_silence_goes_on_under_the_next_supervisor_and_the_time_between_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    now_ns = 1_000

    def clock() -> int:
        return now_ns

    for module in (progress_module, heartbeats, sections):
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


def test_a_step_tells_its_number_before_it_opens():
    progress, recorder = _recorded()
    recorder.stores.clear()
    progress.sections.start("step")
    assert recorder.stores == [layout.WORD_STEPS_SINCE_FIRST, layout.WORD_FIRST_STEP_SEEN, layout.SECTION_SLOTS_START]


def test_a_section_tells_when_it_ended_before_it_closes():
    progress, recorder = _recorded()
    progress.sections.start("setup")
    recorder.stores.clear()
    progress.sections.end("setup")
    tally = layout.SECTION_TALLIES_START + 1
    assert recorder.stores == [layout.WORD_OUT_OF_SECTION_SINCE_NS, layout.SECTION_SLOTS_START + 1, tally]
    assert recorder[layout.SECTION_SLOTS_START + 1] == 0
    assert recorder[tally] >> layout.TALLY_TIME_BITS == 1


def test_a_tally_never_grows_out_of_its_word():
    progress = Progress()
    progress.begin()
    page = ProgressPage.private()
    progress.adopt(page, NAMES)
    section = progress.sections._by_name["setup"]  # pyright: ignore[reportPrivateUsage]
    section.tally = layout.TALLY_MASK
    progress.sections.start("setup")
    progress.sections.end("setup")
    assert 0 <= page.words[section.tally_word] < layout.TALLY_MASK


def test_sections_without_a_tally_of_their_own_write_where_nobody_reads():
    progress = Progress()
    progress.begin()
    page = ProgressPage.private()
    names = [f"section {number}" for number in range(layout.SECTION_SLOTS_MAX)]
    progress.adopt(page, names)
    for name in (names[layout.SECTION_TALLIES_MAX - 1], names[layout.SECTION_TALLIES_MAX]):
        progress.sections.start(name)
        progress.sections.end(name)
    assert page.words[layout.PAGE_WORDS - 1] >> layout.TALLY_TIME_BITS == 1
    assert sum(1 for word in page.words[layout.SECTION_TALLIES_START :] if word) == 1


def test_a_heartbeat_is_two_stores():
    progress, recorder = _recorded()
    recorder.stores.clear()
    progress.heartbeats.beat()
    assert recorder.stores == [layout.WORD_HEARTBEAT_NS, layout.WORD_HEARTBEATS]


def test_the_snapshot_of_a_private_page():
    progress = Progress()
    progress.begin()
    page = ProgressPage.private()
    progress.adopt(page, NAMES)
    progress.sections.start("setup")
    progress.heartbeats.beat()
    snapshot = page.snapshot()
    assert [slot for slot, _ in snapshot.open_sections] == [1]
    assert snapshot.heartbeats == 1
    assert snapshot.initialised_ns <= snapshot.open_sections[0][1] <= snapshot.heartbeat_ns


def test_more_sections_than_slots_are_not_monitored():
    progress = Progress()
    progress.begin()
    names = [f"section {number}" for number in range(layout.SECTION_SLOTS_MAX + 1)]
    progress.adopt(ProgressPage.private(), names)
    progress.sections.start(names[-1])
    progress.sections.end(names[-1])
    progress.sections.end(names[-1])
    assert len(progress.sections.names) == layout.SECTION_SLOTS_MAX


def test_a_section_that_comes_under_watch_later_is_no_error():
    progress = Progress()
    progress.begin()
    progress.adopt(ProgressPage.private(), ["step"])
    progress.sections.start("setup")
    progress.adopt(ProgressPage.private(), ["step", "setup"])
    progress.sections.end("setup")
    progress.sections.start("setup")
    progress.adopt(ProgressPage.private(), ["step"])
    progress.sections.end("setup")
    progress.sections.end("setup")


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


def test_a_memfd_that_is_too_small_is_refused():
    descriptor = os.memfd_create("small", os.MFD_ALLOW_SEALING)
    try:
        with pytest.raises(PageUnusableError, match="too small"):
            ProgressPage.shared(descriptor)
    finally:
        os.close(descriptor)
