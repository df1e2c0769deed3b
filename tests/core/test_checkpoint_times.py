"""When are checkpoints reported, and does a restart, a late report or a strange one spoil the count?"""

from __future__ import annotations

from supervisor.core import checkpoint_times
from supervisor.core.checkpoint_times import SECTIONS_MAX, State
from supervisor.core.facts import JobEvent
from supervisor.core.stragglers.straggler_messages import RankSections, SectionsTold

NAMES = ("step", "checkpointing")


def _told(cycle: int, *ranks: tuple[int, float], names: tuple[str, ...] = NAMES) -> SectionsTold:
    """Each rank: how many checkpoints, and how long they took in all."""
    return SectionsTold(
        "n0", cycle, names,
        tuple(RankSections(rank, (100, times), (50.0, total_s)) for rank, (times, total_s) in enumerate(ranks)),
    )  # fmt: skip


def _after(*told: SectionsTold) -> list[JobEvent]:
    state, events = checkpoint_times.initial_state(), list[JobEvent]()
    for each in told:
        state, actions = checkpoint_times.step(state, each, now_s=1.0)
        events += [action.event for action in actions]
    assert checkpoint_times.next_deadline_s(state) is None
    return events


def test_a_count_is_reported_each_time_that_it_has_doubled():
    events = _after(*(_told(0, (times, 2.0 * times)) for times in range(1, 101)))
    assert [dict(each.details)["times"] for each in events] == ["1", "2", "4", "8", "16", "32", "64"]
    assert {each.kind for each in events} == {"checkpoints_measured"}
    assert events[1].reason == (
        "2 checkpoints have been written in cycle 0 (section 'checkpointing'), 2 s each on the slowest rank"
    )


def test_the_slowest_rank_counts():
    (event,) = _after(_told(0, (2, 3.0), (2, 8.0), (1, 1.0)))
    assert dict(event.details) == {"section": "checkpointing", "times": "2", "total_s": "8.000"}


def test_each_cycle_is_counted_by_itself_and_what_comes_late_is_dropped():
    events = _after(_told(0, (1, 2.0)), _told(1, (0, 0.0)), _told(0, (9, 18.0)), _told(1, (1, 3.0)))
    assert [(each.cycle, dict(each.details)["times"]) for each in events] == [(0, "1"), (1, "1")]


def test_a_rank_with_a_new_page_starts_at_zero_and_takes_nothing_away():
    events = _after(_told(0, (4, 8.0)), _told(0, (1, 2.0)), _told(0, (8, 16.0)))
    assert [dict(each.details)["times"] for each in events] == ["4", "8"]


def test_other_sections_and_too_many_of_that_name_are_left_out():
    assert _after(_told(0, (9, 2.0), names=("step", "forward"))) == []
    state = State()
    for number in range(SECTIONS_MAX + 3):
        state, _ = checkpoint_times.step(state, _told(0, (1, 1.0), names=("step", f"checkpoint{number}")), now_s=1.0)
    assert len(state.sections) == SECTIONS_MAX


def test_a_report_with_fewer_numbers_than_names_is_read_as_far_as_it_goes():
    short = SectionsTold("n0", 0, NAMES, (RankSections(0, (5,), (1.0,)),))
    assert _after(short) == []
