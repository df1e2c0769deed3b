"""Do a Tree's flat lists decide as its obvious rules do, alike on every rank, and fast with 100,000 ranks?"""

from __future__ import annotations

import json
import random
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker_client.inprocess.obvious_tree import ObviousTree
from tests.worker_client.inprocess.rank_world import World
from worker_client.inprocess.rank_assignment import Layer, LayerFlag, RankAssignmentCtx, Tree
from worker_client.inprocess.rank_assignment.tree_reserves import TreeRanks
from worker_client.inprocess.rank_assignment.tree_topology import Topology
from worker_client.inprocess.state import State

pytestmark = pytest.mark.filterwarnings("ignore:LayerFlag:UserWarning")  # drawn flags have gaps
FLAGS = [None, LayerFlag.RESERVE, LayerFlag.BACKFILL, LayerFlag.RESERVE | LayerFlag.BACKFILL]
FILTERS: list[Callable[[int], int] | None] = [
    None,
    lambda size: size // 2 * 2,
    lambda size: size // 3 * 3,
    lambda size: min(size, 4),
]

layers = st.builds(
    Layer,
    min_ranks=st.integers(0, 4),
    max_ranks=st.one_of(st.none(), st.integers(0, 10)),
    flag=st.sampled_from(FLAGS),
)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[Layer], list[tuple[str, ...]]]:
    """Draws layers, and the keys of each rank; some in blocks, as for hosts, some at random."""
    found = draw(st.lists(layers, min_size=1, max_size=4))
    size = draw(st.integers(1, 24))
    columns = [["root"] * size]
    for _ in found[1:]:
        blocks = st.integers(1, 8).map(lambda block: [str(rank // block) for rank in range(size)])
        anyhow = st.lists(st.sampled_from("abc"), min_size=size, max_size=size)
        columns.append(draw(st.one_of(blocks, anyhow)))
    return found, list(zip(*columns, strict=True))


@given(trees(), st.sampled_from(FILTERS), st.booleans(), st.data())
def test_as_the_obvious_rules_decide(
    tree: tuple[list[Layer], list[tuple[str, ...]]],
    world_size_filter: Callable[[int], int] | None,
    in_order: bool,
    data: st.DataObject,
):
    layers, keys = tree
    obvious = ObviousTree(layers, keys, world_size_filter, in_order=in_order)
    topology = Topology(keys, len(layers))
    ranks = TreeRanks(topology, layers, in_order=in_order)
    if world_size_filter:
        ranks.narrow(world_size_filter)
    rank_of = {leaf: rank for rank, leaf in enumerate(topology.leaf_of)}
    while True:
        assert {rank_of[leaf]: place for place, leaf in enumerate(ranks.living)} == obvious.current()
        assert {rank_of[leaf]: place for place, leaf in enumerate(ranks.active)} == obvious.active()
        living = sorted(obvious.current())
        if not living or not data.draw(st.booleans()):
            return
        die = data.draw(st.sets(st.sampled_from(living), max_size=4))
        obvious.restart(die)
        ranks.restart([topology.leaf_of[rank] for rank in die])
        if world_size_filter:
            ranks.narrow(world_size_filter)


@pytest.mark.parametrize("seed", range(16))
def test_all_ranks_agree_through_repeated_faults(seed: int):
    """Eight random trees each, every rank computing its own; some layers have limits, some none."""
    rng = random.Random(seed)
    for _ in range(8):
        size = rng.randrange(2, 13)
        has_limits = rng.random() < 0.7
        layers = [
            Layer(
                min_ranks=rng.randrange(1, 4) if has_limits else 1,
                max_ranks=rng.choice([None, rng.randrange(1, size + 1)]) if has_limits else None,
                key_or_fn=(lambda state, block=block: str(state.rank // block)) if block else "root",
                flag=rng.choice(FLAGS),
            )
            for block in [0, 4, 2][: rng.randrange(1, 4)]
        ]
        world = World(size, lambda _, layers=layers: Tree(layers)).assign()
        world.check()
        while len(world.living) > 1:
            world.assign(rank.initial for rank in rng.sample(world.living, rng.randrange(0, 3) % len(world.living)))
            world.check()
            if not has_limits:
                assert world.sizes() == (len(world.living), len(world.living))
            if rng.random() < 0.2:
                break


# --- speed -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """The answers that all ranks would have given."""

    values: dict[int, str]

    def exchange(
        self, name: str, value: str, *, rank: int, ranks: Collection[int], timeout: timedelta
    ) -> dict[int, str]:
        assert value == self.values[rank]
        assert len(ranks) == len(self.values)
        return self.values


def seconds(size: int, dead: int, flag: LayerFlag | None) -> tuple[float, float]:
    """Returns the CPU time of the first call and of a restart, on one rank."""
    layers = [
        Layer(max_ranks=size - size // 8, flag=flag, key_or_fn="root"),
        Layer(key_or_fn=lambda state: f"switch {state.rank // 512}", flag=flag),
        Layer(min_ranks=4, max_ranks=8, key_or_fn=lambda state: f"host {state.rank // 8}", flag=flag),
    ]
    rules = "; ".join(layer.rules() for layer in layers)
    values = {
        rank: f"{rules}\n{json.dumps(['root', f'switch {rank // 512}', f'host {rank // 8}'])}" for rank in range(size)
    }
    tree, state = Tree(layers), State(rank=size // 2, world_size=size)
    die = set(random.Random(7).sample([rank for rank in range(size) if rank != size // 2], dead))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = time.process_time()
        tree(RankAssignmentCtx(state, Answers(values), set()))
        built = time.process_time()
        tree(RankAssignmentCtx(state, Answers(values), die))
        done = time.process_time()
    assert state.world_size <= size - dead
    return built - before, done - built


@pytest.mark.parametrize(("size", "dead", "restart_max_s"), [(16_384, 1_024, 0.05), (100_000, 100, 0.2)])
@pytest.mark.parametrize("flag", FLAGS)
def test_a_large_tree_is_quick(size: int, dead: int, restart_max_s: float, flag: LayerFlag | None):
    tries: list[tuple[float, float]] = []
    for _ in range(5):  # the fastest one counts: the machine has other work
        tries.append(seconds(size, dead, flag))
        build_s, restart_s = map(min, zip(*tries, strict=True))
        if build_s <= 0.5 and restart_s <= restart_max_s:
            return
    raise AssertionError(f"first call and restart took {tries}")
