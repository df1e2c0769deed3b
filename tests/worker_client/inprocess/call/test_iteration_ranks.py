"""Does a rank know its number in each iteration, even if it missed some, and when nobody is left?"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from worker_client.call_protocol import BeginIteration, Entered
from worker_client.inprocess.call.iteration_ranks import IterationRanks, Membership
from worker_client.inprocess.compose import Compose
from worker_client.inprocess.coordinating.coordination import Coordination
from worker_client.inprocess.exception import InternalError, RestartAbort
from worker_client.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    Layer,
    RankAssignment,
    ShiftRanks,
    Tree,
)
from worker_client.inprocess.state import State
from worker_client.inprocess.watching.main_thread_watch import MainThreadWatch

CALL = 1


class Others:
    """The part of the coordination that is used here."""

    def __init__(self) -> None:
        self.assigned: list[int] = []
        self.names: list[str] = []  # exchanged

    def assign(self, iteration: int) -> None:
        self.assigned.append(iteration)

    def exchange(self, name: str, value: str, *, rank: int, timeout: timedelta) -> dict[int, str]:
        self.names.append(name)
        return {rank: value, rank + 1: value}


def made(rank: int, world_size: int, assignment: RankAssignment | None = None) -> tuple[State, IterationRanks, Others]:
    state, others = State(rank, world_size), Others()
    rule: Any = Compose(ActivateAllRanks(), ShiftRanks()) if assignment is None else assignment
    return state, IterationRanks(state, rule, cast("Coordination", others), MainThreadWatch()), others


def decided(iteration: int, world_size: int, *terminated: int, anew: bool = False) -> BeginIteration:
    return BeginIteration(CALL, iteration, world_size, frozenset(terminated), anew)


def numbers(state: State) -> tuple[int, int, int | None, int | None, int]:
    return state.rank, state.world_size, state.active_rank, state.active_world_size, state.iteration


def test_at_the_start_all_take_part():
    state, ranks, others = made(2, 4)
    assert ranks.membership is Membership.JOINING
    ranks.assign(Entered(CALL, 0, (), ()))
    assert numbers(state) == (2, 4, 2, 4, 0)
    assert ranks.membership is Membership.ASSIGNED
    assert others.assigned == [0]


def test_the_lost_are_left_out_of_the_next():
    state, ranks, _ = made(2, 4)
    ranks.assign(Entered(CALL, 0, (), ()))
    ranks.assign(decided(1, 4, 0))
    assert numbers(state) == (1, 3, 1, 3, 1)


def test_a_rank_that_comes_later_repeats_what_it_has_missed():
    state, ranks, others = made(3, 4)
    ranks.assign(Entered(CALL, 2, (decided(1, 4, 0), decided(2, 3, 0)), ()))
    assert numbers(state) == (1, 2, 1, 2, 2)
    assert others.assigned == [0, 1, 2]


def test_an_assignment_from_the_launch_numbers_forgets_what_was_before():
    state, ranks, others = made(3, 4)
    ranks.assign(Entered(CALL, 2, (decided(1, 4, 0), decided(2, 4, anew=True)), ()))
    assert numbers(state) == (3, 4, 3, 4, 2)
    assert others.assigned == [2]


def test_a_decision_for_another_world_is_not_followed():
    state, ranks, _ = made(0, 4)
    with pytest.raises(InternalError, match="decided for 3 ranks, but rank 0 knows of 4"):
        ranks.assign(Entered(CALL, 1, (decided(1, 3, 0),), ()))
    assert ranks.membership is Membership.JOINING
    assert state.iteration == 0


def test_with_no_active_rank_the_call_ends_for_all():
    rule: Any = Compose(ActiveWorldSizeDivisibleBy(4), ShiftRanks())
    state, ranks, _ = made(0, 4, rule)
    ranks.assign(Entered(CALL, 0, (), ()))
    with pytest.raises(RestartAbort, match=r"iteration=1: rank assignment left no rank active of world_size=3"):
        ranks.assign(decided(1, 4, 3))
    assert ranks.membership is Membership.DESERTED
    assert state.iteration == 1


def test_values_are_exchanged_under_the_rank_s_present_number():
    _, ranks, others = made(2, 4)
    ranks.assign(Entered(CALL, 0, (), ()))
    assert ranks.exchange("key", "same", timedelta(seconds=1)) == {2: "same", 3: "same"}
    assert others.names == ["key"]


def test_an_assignment_that_another_decision_replaces_leaves_nothing():
    for assignment in (None, Tree([Layer()])):
        state, ranks, _ = made(0, 2, assignment)
        ranks.assign(Entered(CALL, 0, (), ()))
        ranks.assign(decided(1, 2, 1))
        assert numbers(state) == (0, 1, 0, 1, 1)
        ranks.take_back()
        ranks.assign(decided(2, 2))
        assert numbers(state) == (0, 2, 0, 2, 2)
