"""What may an assignment of the user's own do, and what may be composed?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.worker_client.inprocess.rank_world import World
from worker_client import inprocess
from worker_client.inprocess.compose import fresh
from worker_client.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    Layer,
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    RankFilter,
    ShiftRanks,
    Tree,
)
from worker_client.inprocess.state import Mode


class Reversed(RankAssignment):
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        ctx.state.rank = ctx.state.world_size - 1 - ctx.state.rank
        return ctx


class EvenRanks(RankFilter):
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        state = ctx.state
        is_active = state.rank % 2 == 0
        state.mode = Mode.ACTIVE if is_active else Mode.INACTIVE
        state.active_rank = state.rank // 2 if is_active else None
        state.active_world_size = (state.world_size + 1) // 2
        return ctx


def test_an_assignment_of_the_user_s_own_needs_no_activator():
    world = World(4, lambda _: inprocess.Compose(Reversed(), ShiftRanks()))
    assert world.assign().active() == [3, 2, 1, 0]
    assert world.assign({1}).active() == [0, None, 1, 2]  # rotated once more
    world.check()


def test_a_filter_of_the_user_s_own_decides():
    world = World(5, lambda _: inprocess.Compose(EvenRanks(), ShiftRanks()))
    assert world.assign().active() == [0, None, 1, None, 2]
    assert world.assign({0}).active() == [None, 0, None, 1, None]
    world.check()


@pytest.mark.parametrize(
    "make",
    [
        lambda: inprocess.Compose(ActivateAllRanks(), MaxActiveWorldSize(4), ShiftRanks()),
        lambda: inprocess.Compose(ActiveWorldSizeDivisibleBy(2), inprocess.Compose(ActivateAllRanks(), ShiftRanks())),
        lambda: inprocess.Compose(ActivateAllRanks(), ShiftRanks(), ActivateAllRanks()),
        lambda: inprocess.Compose(Tree([Layer()]), ShiftRanks()),
        lambda: inprocess.Compose(ActivateAllRanks(), Tree([Layer()])),
        lambda: inprocess.Compose(inprocess.Compose(Tree([Layer()])), Reversed()),
    ],
)
def test_steps_that_would_undo_each_other_are_refused(make: Callable[[], object]):
    with pytest.raises(TypeError, match=r"cannot compose (ActivateAllRanks|Tree) with \w+"):
        make()


def test_each_call_starts_with_fresh_steps():
    tree = Tree([Layer(max_ranks=2)], lambda size: size, keep_spare_order=True)
    own = Reversed()
    renewed = fresh(tree)
    assert isinstance(renewed, Tree)
    assert renewed is not tree
    assert (renewed.layers, renewed.world_size_filter) == (tree.layers, tree.world_size_filter)
    assert renewed.keep_spare_order
    assert fresh(own) is own
    composed = fresh(inprocess.Compose(inprocess.Compose(own), ShiftRanks()))
    assert isinstance(composed, RankAssignment)
