"""Which groups of ranks are left out because they have lost too many?"""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.worker_client.inprocess.rank_world import Died, Make, World, active, after
from worker_client import inprocess
from worker_client.inprocess.rank_assignment import (
    FilterCountGroupedByKey,
    RankAssignment,
    ShiftRanks,
)
from worker_client.inprocess.state import State


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
