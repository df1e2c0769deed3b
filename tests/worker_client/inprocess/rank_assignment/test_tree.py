"""Does a Tree activate, replace, fill and shift as its rules say, vector by vector, the same on every rank?"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import pytest

from tests.worker_client.inprocess.rank_world import Died, World
from worker_client import inprocess
from worker_client.inprocess.rank_assignment import Layer, LayerFlag, RankDiscarded, Tree
from worker_client.inprocess.state import State

R = LayerFlag.RESERVE
B = LayerFlag.BACKFILL
Filter = Callable[[int], int]


def by(size: int) -> Callable[[State], str]:
    return lambda state: str(state.rank // size)


def power_of_two(size: int) -> int:
    return 1 << size.bit_length() - 1 if size else 0


def multiple_of_three(size: int) -> int:
    return size // 3 * 3


class Step(NamedTuple):
    die: set[int]  # initial ranks
    active: str  # active ranks by initial rank, "-" for none
    sizes: tuple[int, int]  # active, all


NONE = set[int]()

VECTORS: dict[str, tuple[list[Layer], Filter | None, list[Step]]] = {
    "no limits": (
        [Layer()],
        None,
        [
            Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)),
            Step({1}, "0 - 1 2 3 4 5 6", (7, 7)),
            Step({0, 5}, "- - 0 1 2 - 3 4", (5, 5)),
        ],
    ),
    "reserve": (
        [Layer(max_ranks=4, flag=R)],
        None,
        [
            Step(NONE, "0 1 2 3 - - - -", (4, 8)),
            Step({1}, "0 - 2 3 - - - 1", (4, 7)),
            Step({0}, "- - 2 3 - - 0 1", (4, 6)),
            Step({2, 3}, "- - - - 3 2 0 1", (4, 4)),
        ],
    ),
    "a reserve that no flag opens": (
        [Layer(max_ranks=4)],
        None,
        [
            Step(NONE, "0 1 2 3 - - - -", (4, 8)),
            Step({1}, "0 - 1 2 - - - -", (3, 7)),
            Step({5}, "0 - 1 2 - - - -", (3, 6)),
        ],
    ),
    "reserve of the other group, beyond its maximum": (
        [Layer(flag=R), Layer(max_ranks=3, key_or_fn=by(4), flag=R)],
        None,
        [Step(NONE, "0 1 2 - 3 4 5 -", (6, 8)), Step({0, 1}, "- - 2 0 3 4 5 1", (6, 6))],
    ),
    "reserve of the own group alone": (
        [Layer(), Layer(max_ranks=3, key_or_fn=by(4), flag=R)],
        None,
        [Step(NONE, "0 1 2 - 3 4 5 -", (6, 8)), Step({0, 1}, "- - 1 0 2 3 4 -", (5, 6))],
    ),
    "the search does not start": (
        [Layer(flag=R), Layer(max_ranks=3, key_or_fn=by(4))],
        None,
        [Step(NONE, "0 1 2 - 3 4 5 -", (6, 8)), Step({0}, "- 0 1 - 2 3 4 -", (5, 7))],
    ),
    "backfill from everywhere": (
        [Layer(flag=B), Layer(key_or_fn=by(4), flag=B)],
        None,
        [Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)), Step({1}, "0 - 2 3 4 5 6 1", (7, 7))],
    ),
    "backfill in the group": (
        [Layer(), Layer(key_or_fn=by(4), flag=B)],
        None,
        [Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)), Step({1}, "0 - 2 1 3 4 5 6", (7, 7))],
    ),
    "backfill does not start": (
        [Layer(flag=B), Layer(key_or_fn=by(4))],
        None,
        [Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)), Step({1}, "0 - 1 2 3 4 5 6", (7, 7))],
    ),
    "no flags at all": (
        [Layer(), Layer(key_or_fn=by(4))],
        None,
        [Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)), Step({1}, "0 - 1 2 3 4 5 6", (7, 7))],
    ),
    "backfill of a pair": (
        [Layer(flag=B), Layer(key_or_fn=by(2), flag=B)],
        None,
        [Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)), Step({2, 3}, "0 1 - - 4 5 2 3", (6, 6))],
    ),
    "backfill stops in the middle": (
        [Layer(flag=B), Layer(key_or_fn=by(4)), Layer(key_or_fn=by(2), flag=B)],
        None,
        [
            Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)),
            Step({0}, "- 0 1 2 3 4 5 6", (7, 7)),
            Step({3}, "- 0 1 - 2 3 4 5", (6, 6)),
        ],
    ),
    "backfill through three layers": (
        [Layer(flag=B), Layer(key_or_fn=by(4), flag=B), Layer(key_or_fn=by(2), flag=B)],
        None,
        [
            Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)),
            Step({0}, "- 1 2 3 4 5 6 0", (7, 7)),
            Step({3}, "- 1 2 - 4 5 3 0", (6, 6)),
        ],
    ),
    "backfill, the last ones die": (
        [Layer(flag=B)],
        None,
        [
            Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)),
            Step({7}, "0 1 2 3 4 5 6 -", (7, 7)),
            Step({5, 6}, "0 1 2 3 4 - - -", (5, 5)),
            Step({0}, "- 1 2 3 0 - - -", (4, 4)),
        ],
    ),
    "backfill, one of the movers dies": (
        [Layer(flag=B)],
        None,
        [Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)), Step({1, 7}, "0 - 2 3 4 1 5 -", (6, 6))],
    ),
    "backfill with too few movers": (
        [Layer(flag=B)],
        None,
        [Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)), Step({0, 1, 2, 3, 4}, "- - - - - 0 1 2", (3, 3))],
    ),
    "a group below its minimum": (
        [Layer(), Layer(min_ranks=3, key_or_fn=by(4))],
        None,
        [Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)), Step({0, 2}, "- - - - 0 1 2 3", (4, 4))],
    ),
    "the root below its minimum": (
        [Layer(min_ranks=7), Layer(key_or_fn=by(4))],
        None,
        [Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)), Step({0, 5}, "- - - - - - - -", (0, 0))],
    ),
    "a minimum pulls down the next": (
        [Layer(), Layer(min_ranks=4, key_or_fn=by(4)), Layer(min_ranks=2, key_or_fn=by(2))],
        None,
        [Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)), Step({1}, "- - - - 0 1 2 3", (4, 4))],
    ),
    "spares of another group that the root does not open": (
        [Layer(), Layer(min_ranks=3, max_ranks=2, key_or_fn=by(4), flag=R)],
        None,
        [
            Step(NONE, "0 1 - - 2 3 - -", (4, 8)),
            Step({0}, "- 1 - 0 2 3 - -", (4, 7)),
            Step({2}, "- - - - 0 1 - -", (2, 4)),
        ],
    ),
    "a spare host replaces a lost one, reversed": (
        [Layer(min_ranks=4, max_ranks=8, flag=R), Layer(min_ranks=4, max_ranks=4, key_or_fn=by(4), flag=R)],
        None,
        [
            Step(NONE, "0 1 2 3 4 5 6 7 - - - -", (8, 12)),
            Step({2}, "- - - - 4 5 6 7 3 2 1 0", (8, 8)),
            Step({5}, "- - - - - - - - 3 2 1 0", (4, 4)),
        ],
    ),
    "a dead spare": (
        [Layer(max_ranks=4, flag=R)],
        None,
        [
            Step(NONE, "0 1 2 3 - -", (4, 6)),
            Step({5}, "0 1 2 3 - -", (4, 5)),
            Step({0}, "- 1 2 3 0 -", (4, 4)),
            Step({1}, "- - 1 2 0 -", (3, 3)),
        ],
    ),
    "too few spares": (
        [Layer(max_ranks=4, flag=R)],
        None,
        [Step(NONE, "0 1 2 3 - -", (4, 6)), Step({0, 1, 2}, "- - - 2 1 0", (3, 3))],
    ),
    "a filter feeds the reserve": (
        [Layer(flag=R)],
        power_of_two,
        [
            Step(NONE, "0 1 2 3 4 5 6 7", (8, 8)),
            Step({1}, "0 - 1 2 3 - - -", (4, 7)),
            Step({0}, "- - 1 2 3 - - 0", (4, 6)),
            Step({2, 3}, "- - - - 3 2 1 0", (4, 4)),
        ],
    ),
    "a filter without a reserve never expands": (
        [Layer()],
        multiple_of_three,
        [
            Step(NONE, "0 1 2 3 4 5 - -", (6, 8)),
            Step({0}, "- 0 1 2 - - - -", (3, 7)),
            Step({1}, "- - - - - - - -", (0, 6)),
        ],
    ),
    "a filter after backfill": (
        [Layer(flag=B)],
        multiple_of_three,
        [Step(NONE, "0 1 2 3 4 5 - -", (6, 8)), Step({0}, "- 1 2 - - 0 - -", (3, 7))],
    ),
    "nobody may be active": ([Layer(max_ranks=0)], None, [Step(NONE, "- - - -", (0, 4))]),
    "nobody is left": (
        [Layer()],
        None,
        [Step(NONE, "0 1 2 3", (4, 4)), Step({0, 1, 2, 3}, "- - - -", (0, 0))],
    ),
}


@pytest.mark.filterwarnings("ignore:LayerFlag:UserWarning")
@pytest.mark.parametrize("name", VECTORS)
def test_vector(name: str):
    layers, world_size_filter, steps = VECTORS[name]
    world = World(len(steps[0].active.split()), lambda _: Tree(layers, world_size_filter))
    for step in steps:
        world.assign(step.die)
        assert shown(world) == step.active
        assert world.sizes() == step.sizes
        world.check()


def shown(world: World) -> str:
    return " ".join("-" if rank is None else str(rank) for rank in world.active())


def test_keys_that_cross_the_order_of_ranks_renumber_them_and_warn():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        world = World(8, lambda _: Tree([Layer(), Layer(key_or_fn=lambda state: str(state.rank % 2))])).assign()
    assert {str(warning.message) for warning in caught} == {
        f"the tree puts rank {rank} at place {place}: it gets that number"
        for rank, place in {1: 4, 2: 1, 3: 5, 4: 2, 5: 6, 6: 3}.items()
    }
    assert {warning.category for warning in caught} == {UserWarning}
    assert shown(world) == "0 4 1 5 2 6 3 7"
    assert world.ranks() == dict(enumerate(world.active()))
    assert shown(world.assign({2})) == "0 3 - 4 1 5 2 6"
    assert world.sizes() == (7, 7)
    world.check()


def test_many_moved_ranks_are_summed_up():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        World(32, lambda _: Tree([Layer(), Layer(key_or_fn=lambda state: str(state.rank % 2))])).assign()
    messages = {str(warning.message) for warning in caught}
    assert len(messages) == 9
    assert "the tree puts 22 more ranks at other places" in messages


def test_a_spare_host_in_its_own_order():
    layers = [Layer(min_ranks=4, max_ranks=8, flag=R), Layer(min_ranks=4, max_ranks=4, key_or_fn=by(4), flag=R)]
    world = World(16, lambda _: Tree(layers, keep_spare_order=True)).assign()
    assert shown(world.assign({2})) == "- - - - 4 5 6 7 0 1 2 3 - - - -"
    assert shown(world.assign({9, 15})) == "- - - - 0 1 2 3 - - - - - - - -"
    world.check()


def test_the_guide_s_example():
    tree = inprocess.rank_assignment.Tree(
        [
            inprocess.rank_assignment.Layer(
                min_ranks=128,
                max_ranks=256,
                key_or_fn="root",
                flag=inprocess.rank_assignment.LayerFlag.RESERVE,
            ),
            inprocess.rank_assignment.Layer(
                min_ranks=8,
                max_ranks=8,
                key_or_fn=lambda _: socket.gethostname(),
                flag=inprocess.rank_assignment.LayerFlag.RESERVE,
            ),
        ]
    )
    assert World(1, lambda _: tree).assign().sizes() == (1, 1)


def test_a_branch_that_was_too_small_from_the_start_goes_with_the_next_restart():
    world = World(7, lambda _: Tree([Layer(), Layer(min_ranks=4, key_or_fn=by(4))])).assign()
    assert world.sizes() == (7, 7)
    assert world.assign().sizes() == (4, 4)
    assert world.discarded() == [4, 5, 6]
    world.check()


def test_a_rank_that_dies_before_the_tree_is_built_is_no_part_of_it():
    def key(rank: int) -> Callable[[State], str]:
        def fails(state: State) -> str:
            if rank == 1:
                raise Died
            return str(state.rank // 4)

        return fails

    def make(rank: int) -> Tree:
        return Tree([Layer(), Layer(min_ranks=4, key_or_fn=key(rank))], timeout=timedelta(seconds=5))

    world = World(8, make).assign()
    assert world.discarded() == [0, 2, 3]
    assert shown(world) == "- - - - 0 1 2 3"
    world.check()
    assert shown(world.assign()) == "- - - - 0 1 2 3"


def test_a_discarded_rank_is_told_why():
    world = World(4, lambda _: Tree([Layer(), Layer(min_ranks=2, key_or_fn=by(2))])).assign()
    world.assign({0})
    assert isinstance(world.everyone[1].outcome, RankDiscarded)
    assert str(world.everyone[1].outcome) == (
        "cannot keep rank 1 (initially 1): fewer than 2 healthy ranks are left in its branch of layer 1; "
        "end this process"
    )


def test_what_a_restart_leaves_alone():
    world = World(2, lambda _: Tree([Layer()])).assign()
    error = RuntimeError("mine")
    state = world.everyone[1].state
    state.iteration, state.fn_exception = 7, error
    world.assign({0})
    expected = State(0, 1, 0, 1, initial_rank=1, initial_world_size=2, iteration=7, fn_exception=error)
    expected.mode = inprocess.Mode.ACTIVE
    assert state == expected


DIFFERENT: dict[str, Callable[[int], Tree]] = {
    "layer 0 has the key '0' on rank 0 and '1' on rank 1": lambda rank: Tree([Layer(key_or_fn=str(rank))]),
    "the layers are (0 to any ranks, None) on rank 0 and (1 to any ranks, None) on rank 1": (
        lambda rank: Tree([Layer(min_ranks=rank)])
    ),
    "(1 to any ranks, None) on rank 0 and (1 to any ranks, LayerFlag.RESERVE) on rank 1; give all": (
        lambda rank: Tree([Layer(flag=R if rank else None)])
    ),
    "on rank 0 and (1 to any ranks, None; 1 to any ranks, None) on rank 1": lambda rank: Tree([Layer()] * (rank + 1)),
}


@pytest.mark.parametrize("message", DIFFERENT)
def test_ranks_that_mean_different_trees_are_told(message: str):
    world = World(2, DIFFERENT[message]).assign()
    assert world.outcomes() == [RuntimeError, RuntimeError]
    assert message in str(world.everyone[0].outcome)


def test_the_ranks_with_the_rarest_key_are_named():
    world = World(8, lambda rank: Tree([Layer(key_or_fn="b" if rank in (2, 5) else "a")])).assign()
    assert "layer 0 has the key 'a' on ranks 0, 1, 3, 4 and 2 more and 'b' on ranks 2, 5;" in str(
        world.everyone[7].outcome
    )


@pytest.mark.parametrize("wanted", [5, -1])
def test_a_filter_that_asks_for_what_is_not_there_is_told(wanted: int):
    world = World(4, lambda _: Tree([Layer()], lambda _: wanted)).assign()
    assert world.outcomes() == [AssertionError] * 4
    assert f"cannot activate {wanted} of 4 ranks" in str(world.everyone[0].outcome)


def test_a_tree_needs_a_root():
    with pytest.raises(IndexError, match="give at least one"):
        Tree([])
