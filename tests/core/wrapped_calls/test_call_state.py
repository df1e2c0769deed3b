"""What is known of a fault, what is kept for late ranks, and what fits in a frame?"""

from __future__ import annotations

from supervisor.core.wrapped_calls import call_state
from supervisor.core.wrapped_calls.call_messages import BeginIteration, CallSettings, Entered, Exchanged, Interruption
from supervisor.core.wrapped_calls.call_state import Member, State


def test_a_fault_is_recorded_once_by_the_number_of_its_iteration() -> None:
    made = State(world_size=5, members={4: Member("a", 1)})
    for reason in ("first", "second"):
        call_state.add_fault(made, 4, Interruption.EXCEPTION, reason, rank=9)
    call_state.add_fault(made, 4, Interruption.TERMINATED, "x" * 10_000)
    (record,) = call_state.records(made)
    assert (record.rank, record.reason) == (1, "first")
    assert len(made.now.faults[4][Interruption.TERMINATED].reason) == call_state.REASON_CHARS_MAX


def test_records_of_thousands_of_ranks_fit_into_a_frame() -> None:
    made = State(world_size=5000)
    for member in range(5000):
        call_state.add_fault(made, member, Interruption.EXCEPTION, "y" * 600, rank=member)
    records = call_state.records(made)
    assert len(records) == 5000
    assert sum(len(each.reason) + 8 for each in records) < 64 * 1024


def test_what_is_kept_for_late_ones_is_bounded() -> None:
    made = State(world_size=2)
    call_state.open_call(made, 1, CallSettings())
    call_state.remember(made, BeginIteration(1, 1, 2))
    assert made.past.can_replay
    call_state.remember(made, Exchanged(1, 1, "big", ((0, "z" * call_state.REPLAY_CHARS_MAX),)))
    assert not made.past.can_replay
    assert (made.past.history, made.past.replay) == ([], [])


def test_settings_that_differ_give_nobody_up_earlier_than_any_rank_says() -> None:
    merged = call_state.merge_settings(
        CallSettings(last_call_wait_s=1.0, barrier_timeout_s=9.0), CallSettings(barrier_timeout_s=5.0)
    )
    assert (merged.last_call_wait_s, merged.barrier_timeout_s) == (1.0, 9.0)


def test_what_is_kept_for_late_ones_begins_where_rank_assignment_has_last_started_anew() -> None:
    made = State(world_size=3)
    call_state.open_call(made, 1, CallSettings())
    made.iteration, made.past.is_rebuilt = 3, True
    call_state.begin_again(made)
    call_state.remember(made, BeginIteration(1, 4, 3, (), anew=True))
    made.iteration = 4
    assert (made.past.begun_at, made.past.can_replay) == (4, True)
    assert call_state.entered(made) == Entered(1, 4, (BeginIteration(1, 4, 3, (), anew=True),))
    call_state.open_call(made, 2, CallSettings())
    assert (made.past.begun_at, call_state.entered(made)) == (0, Entered(2))
