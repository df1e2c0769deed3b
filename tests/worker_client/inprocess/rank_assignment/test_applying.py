"""How does the Wrapper use the assignment that it was given?"""

from __future__ import annotations

import pytest

from tests.worker_client.inprocess.rank_world import World, active, no_store
from worker_client import inprocess
from worker_client.inprocess.rank_assignment import (
    ActivateAllRanks,
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    ShiftRanks,
    assign,
    resolve,
)
from worker_client.inprocess.state import State


def test_an_assignment_that_forgets_to_return_is_told():
    class Forgetful(RankAssignment):
        def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
            return None  # pyright: ignore[reportReturnType]

    with pytest.raises(TypeError, match="it returned None"):
        assign(Forgetful(), RankAssignmentCtx(State(0, 1), no_store(), set()))


def test_the_guide_s_tuples_of_one_are_the_assignment_in_them():
    # fmt: off
    rank_assignment = (
        inprocess.Compose(
            inprocess.rank_assignment.ShiftRanks(),
            inprocess.rank_assignment.FilterCountGroupedByKey(
                key_or_fn=lambda _: "host",
                condition=lambda count: count == 8,
            ),
        ),
    ),
    # fmt: on
    resolved = resolve(rank_assignment)
    assert isinstance(resolved, RankAssignment)
    assert len(active(World(8, lambda _: resolved).assign())) == 8


def test_the_older_filter_argument_runs_after_the_assignment():
    default = inprocess.Compose(ActivateAllRanks(), ShiftRanks())
    resolved = resolve(default, MaxActiveWorldSize(2))
    assert active(World(4, lambda _: resolved).assign({0})) == [1, 2]


@pytest.mark.parametrize("given", [None, (), (ShiftRanks(), ShiftRanks()), ShiftRanks, "shift", [ShiftRanks()]])
def test_what_is_no_assignment_is_refused(given: object):
    with pytest.raises(TypeError, match="cannot assign ranks with"):
        resolve(given)


def test_what_is_no_filter_is_refused():
    with pytest.raises(TypeError, match="cannot filter ranks with"):
        resolve(ShiftRanks(), ShiftRanks())


def test_ranks_are_all_active_unless_a_step_says_which():
    shifted, limited = (RankAssignmentCtx(State(1, 4), no_store(), {0}) for _ in range(2))
    assign(ShiftRanks(), shifted)
    assert (shifted.state.active_rank, shifted.state.active_world_size) == (0, 3)
    assign(inprocess.Compose(MaxActiveWorldSize(0), ShiftRanks()), limited)
    assert (limited.state.active_rank, limited.state.active_world_size) == (None, 0)
