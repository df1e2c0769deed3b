"""What does one message change? In the wrong place, a message changes nothing."""

from __future__ import annotations

import msgspec
import pytest
from holdfast_wire import call_bounds

from supervisor.core.wrapped_calls import rank_messages
from supervisor.core.wrapped_calls.call_actions import Order, Say, Tell
from supervisor.core.wrapped_calls.call_messages import (
    EXCHANGE_NAMES_MAX,
    EXCHANGE_NAMES_OPEN_MAX,
    Barrier,
    BarrierArrive,
    CallEnter,
    CallLeave,
    CallRefused,
    CallSettings,
    Exchanged,
    ExchangeValue,
    FaultsReported,
    Interruption,
    Leaving,
    Lost,
    RankFault,
    RanksMissing,
    Told,
)
from supervisor.core.wrapped_calls.call_state import (
    Entering,
    Idle,
    LastCall,
    Member,
    Newcomer,
    Over,
    Restarting,
    Running,
    State,
    begin_iteration,
)

KILLED = Lost(Interruption.TERMINATED, "was killed by SIGKILL", failed=True)


def running(size: int = 3) -> State:
    state = State(size, phase=Running(), call=1, iteration=2)
    state.members = {member: Member("a", member) for member in range(size)}
    begin_iteration(state)
    for member in range(size):
        rank_messages.number(state, member, member)
    return state


@pytest.mark.parametrize("phase", [Idle(), Over("x")])
def test_without_an_open_iteration_nothing_counts_but_ends(phase: Idle | Over) -> None:
    state = running()
    state.phase = phase
    assert rank_messages.hear(state, 0, RankFault(1, 2, 0, Interruption.EXCEPTION, "x")) == []
    assert rank_messages.hear_leave(state, 0, CallLeave(1, 2, Leaving.DONE, "")) == []
    assert rank_messages.hear_lost(state, 1, KILLED) == []
    assert (state.now.faults, list(state.ended)) == ({}, [1])


def test_a_fault_is_its_ranks_report() -> None:
    state = running()
    rank_messages.hear(state, 1, RankFault(1, 2, 1, Interruption.EXCEPTION, "x"))
    rank_messages.hear(state, 2, FaultsReported(1, 2))
    assert state.now.unreported == {0}


def test_a_return_that_has_crossed_a_fault_does_not_count() -> None:
    state = running()
    for phase in (LastCall(1.0), Restarting()):
        state.phase = phase
        assert rank_messages.hear(state, 0, BarrierArrive(1, 2, Barrier.COMPLETION, 0, True)) == []
    assert state.now.uncompleted == {0, 1, 2}


def test_who_comes_to_the_iteration_barrier_by_itself_has_a_fault() -> None:
    state = running()
    rank_messages.hear(state, 0, BarrierArrive(1, 2, Barrier.ITERATION, 0, True))
    assert list(state.now.faults) == [0]
    assert (state.now.unarrived, state.now.unreported) == ({1, 2}, {1, 2})


def test_the_dead_give_no_values_and_are_not_waited_for() -> None:
    state = running()
    rank_messages.hear(state, 0, ExchangeValue(1, 2, "a", 0, "x"))
    rank_messages.hear_lost(state, 0, KILLED)
    assert state.now.exchanges["a"].waiting == {1, 2}
    assert state.now.exchanges["a"].values == {}


def test_the_death_of_a_rank_that_was_ended_for_its_hang_is_no_second_fault() -> None:
    state = running()
    rank_messages.hear(state, 1, RankFault(1, 2, -1, Interruption.HARD_TIMEOUT, "stood still"))
    rank_messages.hear_lost(state, 1, KILLED)
    assert list(state.now.faults[1]) == [Interruption.HARD_TIMEOUT]
    assert state.now.replaceable == [("a", 1)]


def test_a_rank_that_is_being_ended_for_its_hang_is_not_counted_into_the_next_iteration() -> None:
    state = running()
    rank_messages.hear(state, 1, RankFault(1, 2, -1, Interruption.HARD_TIMEOUT, "stood still"))
    for member in range(3):
        rank_messages.hear(state, member, BarrierArrive(1, 2, Barrier.ITERATION, member, True))
    assert state.now.unarrived == {1}, "it has survived SIGTERM, and SIGKILL follows"
    rank_messages.hear_lost(state, 1, KILLED)
    assert state.now.unarrived == set()
    assert list(state.members) == [0, 2]


@pytest.mark.parametrize("phase", [Idle(), Running()])
def test_a_new_process_that_ends_well_because_the_call_has_succeeded_is_no_news(phase: Idle | Running) -> None:
    state = running()
    state.newcomers[1] = Newcomer("a")
    state.phase = phase
    said = rank_messages.hear_lost(state, 1, Lost(Interruption.TERMINATED, "exited with code 0", failed=False))
    assert [type(each) for each in said] == ([Say] if isinstance(phase, Running) else [])
    state.newcomers[1] = Newcomer("a")
    assert rank_messages.hear_lost(state, 1, KILLED), "an end with an error is told"


def test_names_are_bounded_and_a_flood_costs_each_word_the_same() -> None:
    state = running()
    refused: list[str] = []
    for number in range(6_857):
        for order in rank_messages.hear(state, 0, ExchangeValue(1, 2, f"name {number}", 0, "x")):
            assert isinstance(order, Tell)
            assert isinstance(order.order, CallRefused)
            assert order.members == (0,)
            refused.append(order.order.reason)
    assert len(state.now.exchanges) == EXCHANGE_NAMES_OPEN_MAX
    assert refused == [
        "cannot exchange 'name 16': 16 names already wait for the values of other ranks, and that is the limit; "
        "exchange several values under one name"
    ]
    assert set(state.members) == {1, 2}
    assert list(state.now.faults) == [0]
    # The others exchange as if it had never existed.
    assert rank_messages.hear(state, 1, ExchangeValue(1, 2, "name 3", 1, "x")) == []


def test_one_assignment_has_so_many_names_at_most() -> None:
    state = running()
    for number in range(EXCHANGE_NAMES_MAX):
        state.now.exchanged[f"{number}"] = Exchanged(1, 2, f"{number}", ())
    (told,) = rank_messages.hear(state, 1, ExchangeValue(1, 2, "more", 1, "x"))
    assert isinstance(told, Tell)
    assert isinstance(told.order, CallRefused)
    assert f"has {EXCHANGE_NAMES_MAX} names at most" in told.order.reason


def missing(state: State, word: CallEnter | BarrierArrive | ExchangeValue) -> list[Order]:
    return rank_messages.answer_overdue(state, Told(word.rank, msgspec.structs.replace(word, overdue=True)))


def test_an_overdue_rank_is_told_which_ranks_have_not_entered() -> None:
    state, word = State(9, phase=Entering(), call=1), CallEnter(1, 2, 9, CallSettings(), rank=2)
    state.entries = {2: ("a", word), 5: ("b", word)}
    state.absent = {0: "was killed"}
    assert missing(state, word) == [Tell((2,), RanksMissing(1, (1, 3, 4, 6), 6))]
    assert missing(state, msgspec.structs.replace(word, call=2)) == []
    assert rank_messages.answer_overdue(state, Told(2, word)) == [], "it has not asked"


def test_an_overdue_rank_is_told_which_ranks_have_not_arrived_or_given_a_value() -> None:
    state = running()
    value = ExchangeValue(1, 2, "a", 1, "x")
    assert missing(state, value) == [], "no name is open"
    rank_messages.hear(state, 1, value)
    assert missing(state, value) == [Tell((1,), RanksMissing(1, (0, 2), 2))]
    arrived = BarrierArrive(1, 2, Barrier.COMPLETION, 1, True)
    rank_messages.hear(state, 1, arrived)
    assert missing(state, arrived) == [Tell((1,), RanksMissing(1, (0, 2), 2))]
    state.phase = Restarting()
    assert missing(state, arrived) == [], "the restart ends that wait"
    ended = BarrierArrive(1, 2, Barrier.ITERATION, 1, True)
    for member in (0, 1):
        rank_messages.hear(state, member, msgspec.structs.replace(ended, rank=member))
    assert missing(state, ended) == [Tell((1,), RanksMissing(1, (2,), 1))]
    assert missing(state, msgspec.structs.replace(ended, iteration=1)) == []


def test_both_ends_mean_the_same_number_of_names() -> None:
    assert call_bounds.EXCHANGE_NAMES_MAX == EXCHANGE_NAMES_MAX
