"""The phases of a recovery: which event ends each, and what does the picture say about it?"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from tests.benchmarks.launch import Event, RunFailedError, Told
from tests.benchmarks.pictures import waterfall_picture
from tests.benchmarks.waterfall import Phase, middle, phases

MS = 1_000_000
FAULT = Event("fault", 1, 0, 11, 1000 * MS, {})
TOLD = [
    Told("cycle_started", None, 0, 100 * MS),
    Told("worker_failed", 1, 0, 1012 * MS),
    Told("workers_stopped", None, 0, 1040 * MS),
    Told("cycle_started", None, 1, 1041 * MS),
    Told("workers_stopped", None, 1, 1400 * MS),  # the job's end
]


def by_ranks(name: str, *at_ms: int) -> list[Event]:
    return [Event(name, rank, 1, 20 + rank, each * MS, {}) for rank, each in enumerate(at_ms)]


EVENTS = [
    FAULT,
    *by_ranks("first_line", 1050, 1055),
    *by_ranks("imported", 1060, 1057),
    *by_ranks("group", 1070, 1071),
    *by_ranks("barrier", 1081, 1080),
]


def test_each_phase_ends_with_its_event_of_the_last_rank():
    found = phases(FAULT, 1, EVENTS, TOLD, "barrier")
    assert [(each.name, round(each.ended_s * 1e3)) for each in found] == [
        ("notice", 12),
        ("stop", 40),
        ("decide", 41),
        ("store and fork", 55),
        ("imports", 60),
        ("rendezvous", 71),
        ("first step", 81),
    ]
    assert found[0].began_s == 0.0
    assert [each.began_s for each in found[1:]] == [each.ended_s for each in found[:-1]]


def test_a_script_that_is_back_at_its_first_line_has_no_later_phase():
    assert [each.name for each in phases(FAULT, 1, EVENTS, TOLD, "first_line")][-1] == "store and fork"


def test_a_stop_that_was_over_before_the_fault_was_told_takes_no_time():
    told = [Told("worker_failed", 1, 0, 1041 * MS) if each.kind == "worker_failed" else each for each in TOLD]
    found = phases(FAULT, 1, EVENTS, told, "barrier")
    assert found[1].began_s == found[1].ended_s == 0.041


@pytest.mark.parametrize(
    ("absent", "phase"), [("worker_failed", "notice"), ("workers_stopped", "stop"), ("cycle_started", "decide")]
)
def test_an_event_that_is_absent_is_told_not_guessed(absent: str, phase: str):
    told = [each for each in TOLD if each.kind != absent]
    with pytest.raises(RunFailedError, match=f'no event ends "{phase}"'):
        phases(FAULT, 1, EVENTS, told, "barrier")


def test_the_run_of_the_median_time_is_drawn():
    runs = [[Phase("notice", 0.0, ended_s)] for ended_s in (0.3, 0.1, 0.2)]
    assert middle(runs) is runs[2]
    assert middle([]) == []


def test_a_picture_shows_each_phase_after_the_one_before():
    found = phases(FAULT, 1, EVENTS, TOLD, "barrier")
    drawn = ElementTree.fromstring(waterfall_picture("ours & theirs", found))
    bars = [bar for bar in drawn if bar.tag.endswith("rect")]
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert [round(width / sum(widths) * 81) for width in widths] == [12, 28, 1, 14, 5, 11, 10]
    for before, after, width in zip(bars, bars[1:], widths, strict=False):
        assert float(after.get("x", 0)) == pytest.approx(float(before.get("x", 0)) + width, abs=0.2)
    texts = [text.text for text in drawn if text.tag.endswith("text")]
    assert texts == ["ours & theirs: 81.0 ms", *(text for each in found for text in (each.name, _ms(each)))]


def _ms(phase: Phase) -> str:
    return f"{(phase.ended_s - phase.began_s) * 1e3:.1f} ms"
