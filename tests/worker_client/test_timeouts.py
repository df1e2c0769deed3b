"""Calculated limits: factor, mean of calculated ones, partial selection, saved state."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_client.errors import RankMonitorClientError
from worker_client.timeouts import (
    HeartbeatTimeouts,
    Limits,
    SectionTimeouts,
    Timeouts,
    calculate_heartbeat,
    calculate_sections,
    from_state,
    to_state,
)

SECONDS = st.floats(min_value=1e-6, max_value=1e6)


def test_a_configured_value_is_replaced_a_calculated_one_is_averaged():
    configured = HeartbeatTimeouts(100, 50)
    first = calculate_heartbeat(configured, initial_max_s=4, gap_max_s=2, safety_factor=5)
    assert first == HeartbeatTimeouts(20, 10, were_calculated=True)
    second = calculate_heartbeat(first, initial_max_s=8, gap_max_s=4, safety_factor=5)
    assert second == HeartbeatTimeouts(30, 15, were_calculated=True)


def test_an_initial_limit_that_was_not_measured_stays_the_configured_one():
    configured = Limits(100, 50)
    first = calculate_heartbeat(HeartbeatTimeouts(100, 50), initial_max_s=None, gap_max_s=2, safety_factor=5)
    assert (first.initial, first.subsequent, first.were_calculated) == (100, 10, True)
    assert Timeouts(first).not_below(200).limits() == Limits(100, 200)
    again = from_state(json.loads(json.dumps(to_state(Timeouts(first)))))
    assert again.over(configured).limits() == Limits(100, 10)
    assert again.over(Limits(300, 50)).limits() == Limits(300, 10)
    assert again.over(Limits()).limits() == Limits(None, 10)
    second = calculate_heartbeat(again.over(configured).heartbeat, initial_max_s=8, gap_max_s=4, safety_factor=5)
    assert second == HeartbeatTimeouts(40, 15, were_calculated=True)
    third = calculate_heartbeat(second, initial_max_s=None, gap_max_s=3, safety_factor=5)
    assert third == HeartbeatTimeouts(40, 15, were_calculated=True)


def test_only_what_is_selected_changes():
    configured = SectionTimeouts({"a": 9, "b": None}, out_of_section=7)
    first = calculate_sections(configured, max_s={"a": 2}, outside_max_s=None, safety_factor=3)
    assert first == SectionTimeouts({"a": 6, "b": None}, 7, ("a",), False)
    second = calculate_sections(first, max_s={"b": 1, "a": 4}, outside_max_s=2, safety_factor=3)
    assert second == SectionTimeouts({"a": 9, "b": 3}, 6, ("a", "b"), True)
    third = calculate_sections(second, max_s={}, outside_max_s=4, safety_factor=3)
    assert third.out_of_section == 9


def test_validity_and_calculation_are_told_apart():
    assert not HeartbeatTimeouts(1, None).are_valid
    assert HeartbeatTimeouts(1, 2).are_valid
    assert not SectionTimeouts({"a": None}, 1).are_valid
    assert SectionTimeouts({"a": 1}, 1).are_valid
    assert not SectionTimeouts({"a": 1}, 1).were_calculated
    assert SectionTimeouts({"a": 1}, 1, ("a",)).were_calculated


@given(gaps=st.lists(SECONDS, min_size=1), floor_s=SECONDS)
def test_no_calculated_limit_is_below_the_floor_and_no_configured_one_is_touched(gaps: list[float], floor_s: float):
    timeouts = Timeouts(HeartbeatTimeouts(1e-6, 1e-6), SectionTimeouts({"a": 1e-6, "b": 1e-6, "c": None}, 1e-6))
    assert timeouts.not_below(floor_s) == timeouts
    for gap in gaps:
        timeouts = Timeouts(
            calculate_heartbeat(timeouts.heartbeat, initial_max_s=gap, gap_max_s=gap, safety_factor=1),
            calculate_sections(timeouts.section, max_s={"a": gap}, outside_max_s=gap, safety_factor=1),
        ).not_below(floor_s)
        assert timeouts.not_below(floor_s) == timeouts
        assert timeouts.heartbeat.initial is not None
        assert timeouts.heartbeat.initial >= floor_s
        assert timeouts.heartbeat.subsequent == timeouts.heartbeat.initial == timeouts.section.section["a"]
        assert timeouts.section.out_of_section == timeouts.section.section["a"]
        assert (timeouts.section.section["b"], timeouts.section.section["c"]) == (1e-6, None)
    assert from_state(to_state(timeouts)).not_below(floor_s / 2) == from_state(to_state(timeouts))


@given(initial=SECONDS, gap=SECONDS, sections=st.dictionaries(st.text(max_size=9), SECONDS), outside=SECONDS)
def test_a_state_survives_json(initial: float, gap: float, sections: dict[str, float], outside: float):
    timeouts = Timeouts(
        calculate_heartbeat(HeartbeatTimeouts(), initial_max_s=initial, gap_max_s=gap, safety_factor=2),
        calculate_sections(SectionTimeouts(), max_s=sections, outside_max_s=outside, safety_factor=2),
    )
    state = to_state(timeouts)
    assert from_state(json.loads(json.dumps(state))) == timeouts
    assert to_state(from_state(state)) == state


def test_a_state_keeps_calculated_values_only_and_they_win():
    configured = Limits(9, 8, 7, (("a", 6.0), ("b", 5.0)))
    mine = Timeouts().over(configured)
    mine = Timeouts(
        mine.heartbeat, calculate_sections(mine.section, max_s={"a": 1}, outside_max_s=None, safety_factor=2)
    )
    state = to_state(mine)
    assert state == {
        "current_timeouts": {
            "heartbeat": {"initial": None, "subsequent": None, "were_calculated": False},
            "section": {
                "section": {"a": 2.0}, "out_of_section": None, "calculated_sections": ["a"],
                "is_out_of_section_calculated": False,
            },
        }
    }  # fmt: skip
    assert from_state(state).over(configured).limits() == Limits(9, 8, 7, (("a", 2.0), ("b", 5.0)))
    assert from_state(state).over(Limits(sections=(("b", 5.0),))).limits() == Limits(sections=(("b", 5.0),))


def test_the_shortest_limit():
    assert Limits().shortest_s() is None
    assert Limits(9, 8, None, (("a", None), ("b", 3.0))).shortest_s() == 3


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("heartbeat", None, "heartbeat is not a mapping"),
        ("heartbeat.initial", -1, "heartbeat.initial is -1"),
        ("heartbeat.subsequent", True, "heartbeat.subsequent is True"),
        ("heartbeat.initial", float("inf"), "heartbeat.initial is inf"),
        ("section.calculated_sections", "a", "calculated_sections is not a list"),
        ("section.calculated_sections", ["x"], "lacks the calculated sections x"),
        ("section.out_of_section", None, "out_of_section is None"),
    ],
)
def test_a_broken_state_names_its_flaw(path: str, value: object, message: str):
    timeouts = Timeouts(HeartbeatTimeouts(2, 1, True), SectionTimeouts({"a": 1}, 2, ("a",), True))
    state = json.loads(json.dumps(to_state(timeouts)))
    *folders, name = path.split(".")
    place = state["current_timeouts"]
    for folder in folders:
        place = place[folder]
    place[name] = value
    with pytest.raises(RankMonitorClientError, match=message):
        from_state(state)
