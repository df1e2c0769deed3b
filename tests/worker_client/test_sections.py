"""Which sections are open, and what is stamped in which order?"""

from __future__ import annotations

import sys
import types

import pytest
from holdfast_wire import page_layout as layout

from tests.worker_client.recorded_page import NAMES, recorded
from worker_client import sections as module
from worker_client import training_iteration
from worker_client.errors import RankMonitorClientError
from worker_client.progress_page_writer import Carried, ProgressPage
from worker_client.rank_progress import Progress
from worker_client.sections import Sections


def test_a_step_tells_its_number_before_it_opens():
    progress, recorder = recorded()
    recorder.stores.clear()
    progress.sections.start("step")
    assert recorder.stores == [layout.WORD_STEPS_SINCE_FIRST, layout.WORD_FIRST_STEP_SEEN, layout.SECTION_SLOTS_START]


def test_a_section_tells_when_it_ended_before_it_closes():
    progress, recorder = recorded()
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


def settled(*names: str) -> Sections:
    """Returns sections under watch."""
    sections = Sections(lambda: None)
    sections.move(ProgressPage.private(), names, Carried(0, 1))
    return sections


def is_open(sections: Sections, name: str) -> bool:
    return sections._by_name[name].opened_ns is not None  # pyright: ignore[reportPrivateUsage]


def test_one_is_opened_once_and_closed_once():
    sections = settled("step", "setup")
    sections.start("step")
    with pytest.raises(RankMonitorClientError, match=r"cannot start section 'step': it is open already; call end_sec"):
        sections.start("step")
    sections.end("step")
    with pytest.raises(RankMonitorClientError, match=r"cannot end section 'step': it is not open; call start_section"):
        sections.end("step")


def test_names_without_a_limit_cost_nothing_and_are_never_an_error():
    sections = settled("step")
    for _ in range(2):
        sections.start("unknown")
    sections.end("unknown")
    assert sections.names == ("step",)


def test_an_end_of_all_is_that_of_its_owner():
    sections, mine, theirs = settled("step", "setup", "save"), object(), object()
    sections.start("step", mine)
    sections.start("setup", theirs)
    sections.end_all(mine)
    assert [is_open(sections, name) for name in sections.names] == [False, True, False]
    sections.end_all()
    assert not is_open(sections, "setup")
    sections.end_all()


def test_what_is_dropped_is_closed_and_not_measured(monkeypatch: pytest.MonkeyPatch):
    now_ns = 100
    monkeypatch.setattr(module, "monotonic_ns", lambda: now_ns)
    sections, mine = settled("step", "setup", "save"), object()
    sections.start("setup")
    now_ns = 200
    sections.start("step", mine)
    sections.start("save")
    now_ns = 900
    sections.drop(mine)
    assert [is_open(sections, name) for name in sections.names] == [False, True, True]
    sections.drop(since_ns=200)
    assert [is_open(sections, name) for name in sections.names] == [False, True, False]
    assert sections.measure()[1] == {"step": 0, "setup": 0, "save": 0}


def test_what_opened_before_the_names_were_known_is_open_with_its_owner():
    sections, mine, theirs = Sections(lambda: None), object(), object()
    sections.start("step", mine)
    sections.start("setup", theirs)
    sections.start("unknown", mine)
    sections.start("save", mine)
    sections.end("save")
    sections.end_all(theirs)
    sections.move(ProgressPage.private(), ("step", "setup", "save"), Carried(0, 1))
    assert [is_open(sections, name) for name in sections.names] == [True, False, False]


def test_time_outside_is_none_while_any_section_is_open(monkeypatch: pytest.MonkeyPatch):
    now_ns = 100
    monkeypatch.setattr(module, "monotonic_ns", lambda: now_ns)
    sections = settled("step", "setup")
    sections.begin(100)
    now_ns = 150
    sections.start("step")
    now_ns = 300
    sections.start("setup")
    sections.end("step")
    now_ns = 400
    assert sections.measure() == (50, {"step": 150, "setup": 0})
    sections.end("setup")
    now_ns = 460
    assert sections.measure() == (60, {"step": 150, "setup": 100}), "the time outside runs on"


def test_steps_are_counted_from_the_framework_s_own_number_where_it_counts(monkeypatch: pytest.MonkeyPatch):
    arguments = types.SimpleNamespace(curr_iteration=500)
    megatron = types.SimpleNamespace(_GLOBAL_ARGS=arguments)
    monkeypatch.setitem(sys.modules, training_iteration.MEGATRON_MODULE, megatron)  # pyright: ignore[reportArgumentType]
    sections, page = Sections(lambda: None), ProgressPage.private()
    sections.move(page, ("step",), Carried(0, 1))
    for number, expected in ((500, 0), (501, 1), (503, 3), (499, 0)):
        arguments.curr_iteration = number
        sections.start("step")
        sections.end("step")
        assert page.snapshot().steps_since_first == expected


def test_without_a_framework_each_opening_of_a_step_is_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, training_iteration.MEGATRON_MODULE, raising=False)
    sections, page = Sections(lambda: None), ProgressPage.private()
    sections.move(page, ("setup", "step"), Carried(0, 1))
    for name in ("setup", "step", "step"):
        sections.start(name)
        sections.end(name)
    assert (page.snapshot().steps_since_first, page.snapshot().first_step_seen) == (1, True)
