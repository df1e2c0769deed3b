"""Do ranks get the numbers in the guide, the same on every rank, and is the right number of them active?"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker_client.inprocess.rank_world import Died, World
from worker_client import inprocess
from worker_client.inprocess.compose import fresh
from worker_client.inprocess.rank_assignment import (
    ActivateAllRanks,
    ActiveWorldSizeDivisibleBy,
    FillGaps,
    FilterCountGroupedByKey,
    Layer,
    MaxActiveWorldSize,
    RankAssignment,
    RankAssignmentCtx,
    RankDiscarded,
    RankFilter,
    ShiftRanks,
    Tree,
    assign,
    resolve,
)
from worker_client.inprocess.state import Mode, State

Make = Callable[[int], RankAssignment]


def after(size: int, die: set[int], make: Make) -> dict[int, int]:
    """Returns initial rank → rank after one restart."""
    world = World(size, make).assign()
    assert world.ranks() == {rank: rank for rank in range(size)}
    world.assign(die).check()
    return world.ranks()


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


def no_store() -> inprocess.store.RankStore:
    class NoStore:
        def exchange(self, *_: object, **__: object) -> dict[int, str]:
            raise AssertionError("nothing is exchanged here")

    return NoStore()


@pytest.mark.parametrize("step", [ShiftRanks, FillGaps, lambda: Tree([Layer()])])
def test_a_rank_that_counts_as_terminated_is_discarded(step: Callable[[], RankAssignment]):
    ctx = RankAssignmentCtx(State(rank=2, world_size=4, initial_rank=3), no_store(), {2})
    with pytest.raises(RankDiscarded, match="cannot keep rank 2"):
        step()(ctx)


# --- who is active ---------------------------------------------------------------------------------------------------


def active(world: World) -> list[int]:
    """Returns initial ranks in the order of their active ranks."""
    world.check()
    ranks = {rank.state.active_rank: rank.initial for rank in world.living if rank.state.active_rank is not None}
    return [ranks[number] for number in sorted(ranks)]


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


# --- groups ----------------------------------------------------------------------------------------------------------


def by_key(divisor: int, count: int) -> FilterCountGroupedByKey:
    return FilterCountGroupedByKey(key_or_fn=lambda state: state.rank // divisor, condition=lambda n: n == count)


@pytest.mark.parametrize(
    ("die", "expected"),
    [({1, 4, 5}, {2: 0, 3: 1, 6: 2, 7: 3}), ({1, 6}, {2: 0, 3: 1, 4: 2, 5: 3}), (set[int](), {r: r for r in range(8)})],
)
def test_an_incomplete_group_goes_as_a_whole(die: set[int], expected: dict[int, int]):
    assert after(8, die, lambda _: inprocess.Compose(ShiftRanks(), by_key(2, 2))) == expected


def test_a_second_filter_counts_the_ranks_that_the_first_left():
    world = World(8, lambda _: inprocess.Compose(ShiftRanks(), by_key(3, 3), ShiftRanks(), by_key(2, 2)))
    world.assign({1, 6})
    # 0 and 7 went with 1 and 6; of 2 3 4 | 5 the last group is one short
    assert world.ranks() == {2: 0, 3: 1, 4: 2}
    assert world.discarded() == [0, 5, 7]
    world.check()


def test_each_rank_s_own_condition_counts_for_it():
    """Hosts of different size, each with its own condition, as for the same script on different machines."""

    def make(rank: int) -> RankAssignment:
        wanted = 2 if rank < 2 else 3
        return inprocess.Compose(
            ShiftRanks(), FilterCountGroupedByKey(lambda state: min(state.rank // 2, 1), lambda n: n == wanted)
        )

    world = World(5, make).assign()
    assert world.ranks() == {rank: rank for rank in range(5)}


def test_a_rank_that_dies_in_the_exchange_is_missed_by_nobody_else():
    def make(rank: int) -> RankAssignment:
        def key(state: State) -> int:
            if rank == 3:
                raise Died
            return state.rank // 2

        return inprocess.Compose(ShiftRanks(), FilterCountGroupedByKey(key, lambda n: n == 2, timedelta(seconds=5)))

    world = World(6, make).assign()
    assert world.ranks() == {0: 0, 1: 1, 4: 2, 5: 3}
    assert world.discarded() == [2]
    world.check()


@pytest.mark.parametrize("key", ["all", 7])
def test_a_group_s_key_may_be_a_plain_text_or_number(key: str | int):
    make: Make = lambda _: inprocess.Compose(ShiftRanks(), FilterCountGroupedByKey(key, lambda n: n > 2))  # noqa: E731
    assert after(4, {0}, make) == {1: 0, 2: 1, 3: 2}
    assert after(4, {0, 1}, make) == {}


# --- the user's own, and what the guides print -----------------------------------------------------------------------


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


def test_an_assignment_that_forgets_to_return_is_told():
    class Forgetful(RankAssignment):
        def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
            return None  # pyright: ignore[reportReturnType]

    with pytest.raises(TypeError, match="it returned None"):
        assign(Forgetful(), RankAssignmentCtx(State(0, 1), no_store(), set()))


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


def test_the_guide_s_groups_of_eight():
    rank_assignment = inprocess.Compose(
        inprocess.rank_assignment.ActivateAllRanks(),
        inprocess.rank_assignment.ShiftRanks(),
        inprocess.rank_assignment.FilterCountGroupedByKey(
            key_or_fn=lambda state: state.rank // 8,
            condition=lambda count: count == 8,
        ),
    )
    world = World(24, lambda _: rank_assignment).assign()
    assert active(world.assign({9})) == [*range(8), *range(16, 24)]
    assert len(world.discarded()) == 7


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
