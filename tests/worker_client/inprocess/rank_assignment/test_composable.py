"""Do ranks get the numbers in the guide, the same on every rank, and is the right number of them active?"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker_client.inprocess.rank_world import World, active, after, no_store
from worker_client import inprocess
from worker_client.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    FillGaps,
    Layer,
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    RankDiscarded,
    RankFilter,
    ShiftRanks,
    Tree,
)
from worker_client.inprocess.state import State


@pytest.mark.parametrize(
    ("size", "die", "expected"),
    [
        (8, {1, 4, 5}, {0: 0, 2: 1, 3: 2, 6: 3, 7: 4}),
        (8, {1, 2, 7}, {0: 0, 3: 1, 4: 2, 5: 3, 6: 4}),
        (3, set[int](), {0: 0, 1: 1, 2: 2}),
    ],
)
def test_shift_ranks_keeps_the_order(size: int, die: set[int], expected: dict[int, int]):
    assert after(size, die, lambda _: ShiftRanks()) == expected


@pytest.mark.parametrize(
    ("size", "die", "expected"),
    [
        (8, {1, 4, 5}, {0: 0, 6: 1, 2: 2, 3: 3, 7: 4}),  # the guide's figure
        (8, {1, 2, 7}, {0: 0, 3: 3, 4: 4, 5: 1, 6: 2}),
        (4, {0}, {1: 1, 2: 2, 3: 0}),
        (8, {6, 7}, {rank: rank for rank in range(6)}),
        (6, {0, 5}, {1: 1, 2: 2, 3: 3, 4: 0}),
        (8, {5, 6}, {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 7: 5}),
    ],
)
def test_fill_gaps_moves_only_the_last_ranks(size: int, die: set[int], expected: dict[int, int]):
    assert after(size, die, lambda _: FillGaps()) == expected


@given(st.data(), st.sampled_from([ShiftRanks, FillGaps]))
def test_numbers_have_no_gaps_and_move_as_little_as_they_may(
    data: st.DataObject, step: type[ShiftRanks] | type[FillGaps]
):
    size = data.draw(st.integers(1, 20))
    die = data.draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    found: dict[int, int] = {}
    for rank in sorted(set(range(size)) - die):
        ctx = RankAssignmentCtx(State(rank=rank, world_size=size), no_store(), set(die))
        found[rank] = step()(ctx).state.rank
        assert (ctx.state.world_size, ctx.terminated_ranks) == (size - len(die), set())
    left = size - len(die)
    assert sorted(found.values()) == list(range(left))
    if step is ShiftRanks:
        assert list(found.values()) == sorted(found.values())
    else:
        assert all(found[rank] == rank for rank in found if rank < left)
        movers = [found[rank] for rank in found if rank >= left]
        assert movers == sorted(movers)


@pytest.mark.parametrize("step", [ShiftRanks, FillGaps, lambda: Tree([Layer()])])
def test_a_rank_that_counts_as_terminated_is_discarded(step: Callable[[], RankAssignment]):
    ctx = RankAssignmentCtx(State(rank=2, world_size=4, initial_rank=3), no_store(), {2})
    with pytest.raises(RankDiscarded, match="cannot keep rank 2"):
        step()(ctx)


def test_a_multiple_is_active_and_the_rest_waits():
    world = World(9, lambda _: inprocess.Compose(ActiveWorldSizeDivisibleBy(4), ShiftRanks()))
    assert active(world.assign()) == list(range(8))
    assert active(world.assign({0, 3})) == [1, 2, 4, 5]
    assert world.sizes() == (4, 7)


def test_filters_run_from_the_last_to_the_first():
    first_divided = World(7, lambda _: inprocess.Compose(MaxActiveWorldSize(5), ActiveWorldSizeDivisibleBy(2)))
    first_limited = World(7, lambda _: inprocess.Compose(ActiveWorldSizeDivisibleBy(2), MaxActiveWorldSize(5)))
    assert len(active(first_divided.assign())) == 5
    assert len(active(first_limited.assign())) == 4


def test_a_reserve_rank_takes_the_place_of_a_lost_one():
    world = World(6, lambda _: inprocess.Compose(MaxActiveWorldSize(4), ShiftRanks()))
    assert active(world.assign()) == [0, 1, 2, 3]
    assert active(world.assign({1})) == [0, 2, 3, 4]
    assert active(world.assign({0})) == [2, 3, 4, 5]
    assert active(world.assign({5})) == [2, 3, 4]
    assert world.sizes() == (3, 3)


def test_an_active_world_size_of_none_at_all_is_told():
    world = World(7, lambda _: inprocess.Compose(MaxActiveWorldSize(5), ActiveWorldSizeDivisibleBy(8), ShiftRanks()))
    assert active(world.assign()) == []
    assert world.sizes() == (0, 7)


def test_nothing_is_lost_with_the_wrapper_s_default():
    world = World(4, lambda _: inprocess.Compose(ActivateAllRanks(), ShiftRanks()))
    assert active(world.assign()) == [0, 1, 2, 3]
    assert active(world.assign({0, 2})) == [1, 3]


@pytest.mark.parametrize(
    ("make", "value"),
    [(ActiveWorldSizeDivisibleBy, 0), (ActiveWorldSizeDivisibleBy, -2), (MaxActiveWorldSize, -1)],
)
def test_sizes_that_mean_nothing_are_refused(make: Callable[[int], RankFilter], value: int):
    with pytest.raises(ValueError, match=str(value)):
        make(value)
