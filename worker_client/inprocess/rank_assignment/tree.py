"""How does a tree of ranks decide about all at once: which continue, as what, and which replace the lost ones?"""

from __future__ import annotations

import json
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from worker_client import rank_text
from worker_client.inprocess.rank_assignment.assignment import RankAssignment, RankAssignmentCtx, RankDiscarded
from worker_client.inprocess.rank_assignment.grouped import group_key
from worker_client.inprocess.rank_assignment.tree_layers import Layer, idle_flags
from worker_client.inprocess.rank_assignment.tree_reserves import TreeRanks
from worker_client.inprocess.rank_assignment.tree_topology import Topology
from worker_client.inprocess.state import Mode

RANKS_SHOWN_MAX = 4  # in an error
MOVED_SHOWN_MAX = 8  # ranks that the tree reorders; a warning lists them one by one


class Tree(RankAssignment):
    """Assigns and activates ranks by their place in a tree of `layers`; the first one is the root.

    The first call exchanges the keys of all ranks: it blocks for at most `timeout`, then raises BarrierTimeout. Later
    calls only compute. `world_size_filter` takes the number of active ranks and returns how many are wanted, the same
    on all ranks.

    `keep_spare_order`: the first spare steps in first, so a reserve host that replaces a lost host keeps its ranks in
    the same local order. By default the last spare steps in first, which reverses them.
    """

    activates = True

    def __init__(
        self,
        layers: Sequence[Layer],
        world_size_filter: Callable[[int], int] | None = None,
        *,
        keep_spare_order: bool = False,
        timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        if not layers:
            raise IndexError("cannot build a tree: it has no layers; give at least one, the root")
        for sentence in idle_flags(layers):
            warnings.warn(sentence, UserWarning, stacklevel=2)
        self.layers = list(layers)
        self.world_size_filter = world_size_filter
        self.keep_spare_order = keep_spare_order
        self.timeout = timeout
        self._ranks: TreeRanks | None = None
        self._leaf = 0  # this rank's

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        fallen: dict[int, int | None] = {}
        if self._ranks is None:
            if ctx.state.rank in ctx.terminated_ranks:
                raise RankDiscarded(f"cannot keep rank {ctx.state.rank}: it counts as terminated; end this process")
            self._ranks = self._built(ctx)
            if ctx.terminated_ranks:
                fallen = self._ranks.restart(())  # a missing rank is not a leaf, but may leave a branch too small
        else:
            fallen = self._ranks.restart([self._ranks.living[rank] for rank in ctx.terminated_ranks])
        if self.world_size_filter is not None:
            self._ranks.narrow(self.world_size_filter)
        ctx.terminated_ranks = set()
        self._settle(ctx, self._ranks, fallen)
        return ctx

    def fresh(self) -> Tree:
        return Tree(self.layers, self.world_size_filter, keep_spare_order=self.keep_spare_order, timeout=self.timeout)

    def kept(self) -> Tree:
        """Returns a copy with the same memory, which does not change with this tree's."""
        other = self.fresh()
        other._ranks, other._leaf = None if self._ranks is None else self._ranks.kept(), self._leaf
        return other

    def check_beside(self, others: tuple[object, ...]) -> None:
        if others:
            name = type(others[0]).__name__
            raise TypeError(
                f"cannot compose Tree with {name}: Tree assigns and activates all ranks by itself; leave {name} out"
            )

    def _built(self, ctx: RankAssignmentCtx) -> TreeRanks:
        keys = [group_key(layer.key_or_fn, ctx.state) for layer in self.layers]
        rules = "; ".join(layer.rules() for layer in self.layers)
        values = ctx.exchange("tree", f"{rules}\n{json.dumps(keys)}", self.timeout)
        ranks = sorted(values)
        paths = _read({rank: values[rank] for rank in ranks})
        topology = Topology(paths, len(self.layers))
        _warn_of_moved(ranks, topology)
        self._leaf = topology.leaf_of[bisect_left(ranks, ctx.state.rank)]
        return TreeRanks(topology, self.layers, in_order=self.keep_spare_order)

    def _settle(self, ctx: RankAssignmentCtx, ranks: TreeRanks, fallen: dict[int, int | None]) -> None:
        """Records this rank's new place. Raises RankDiscarded if it has none."""
        state, leaf = ctx.state, self._leaf
        if leaf in fallen:
            raise RankDiscarded(
                f"cannot keep rank {state.rank} (initially {state.initial_rank}): {self._why(fallen[leaf])}; "
                "end this process"
            )
        state.rank = bisect_left(ranks.living, leaf)
        state.world_size = len(ranks.living)
        state.active_world_size = len(ranks.active)
        try:
            state.active_rank = ranks.active.index(leaf)
            state.mode = Mode.ACTIVE
        except ValueError:
            state.active_rank = None
            state.mode = Mode.INACTIVE

    def _why(self, layer: int | None) -> str:
        if layer is None:
            return "it counts as terminated"
        return f"fewer than {self.layers[layer].min_ranks} healthy ranks are left in its branch of layer {layer}"


def _read(texts: Mapping[int, str]) -> list[tuple[str, ...]]:
    """Returns the keys of each rank, root first. Raises RuntimeError if the ranks don't describe the same tree."""
    distinct = list(dict.fromkeys(texts.values()))  # usually few: ranks of one host send the same
    rules, keys_json = zip(*(text.split("\n", 1) for text in distinct), strict=True)
    if len(set(rules)) > 1:
        rules_of = dict(zip(distinct, rules, strict=True))
        (first, its_ranks), (second, others) = _most_and_least({rank: rules_of[texts[rank]] for rank in texts})
        raise RuntimeError(
            f"cannot build the tree of ranks: the layers are ({first}) on {its_ranks} and ({second}) on {others}; "
            "give all ranks the same limits and flags"
        )
    rows: list[list[str]] = json.loads(f"[{','.join(keys_json)}]")  # one call: many would be slow
    keys_of = dict(zip(distinct, map(tuple, rows), strict=True))
    if len({keys[0] for keys in keys_of.values()}) > 1:
        (first, its_ranks), (second, others) = _most_and_least({rank: keys_of[texts[rank]][0] for rank in texts})
        raise RuntimeError(
            f"cannot build the tree of ranks: layer 0 has the key {first!r} on {its_ranks} and {second!r} on {others}; "
            "it is the root, give all ranks the same key"
        )
    return [keys_of[text] for text in texts.values()]


def _most_and_least(described: Mapping[int, str]) -> tuple[tuple[str, str], tuple[str, str]]:
    """Returns the most and the least frequent text, each with the ranks that sent it."""
    ranks_of: dict[str, list[int]] = {}
    for rank, text in described.items():
        ranks_of.setdefault(text, []).append(rank)
    by_number = sorted(ranks_of.items(), key=lambda each: -len(each[1]))
    (most, its_ranks), (least, others) = by_number[0], by_number[-1]
    return (most, _named(its_ranks)), (least, _named(others))


def _named(ranks: Sequence[int]) -> str:
    return rank_text.named(ranks[:RANKS_SHOWN_MAX], len(ranks))


def _warn_of_moved(ranks: list[int], topology: Topology) -> None:
    moved = [(rank, leaf) for i, (rank, leaf) in enumerate(zip(ranks, topology.leaf_of, strict=True)) if i != leaf]
    for rank, leaf in moved[:MOVED_SHOWN_MAX]:
        warnings.warn(f"the tree puts rank {rank} at place {leaf}: it gets that number", UserWarning, stacklevel=5)
    if len(moved) > MOVED_SHOWN_MAX:
        more = len(moved) - MOVED_SHOWN_MAX
        warnings.warn(f"the tree puts {more} more ranks at other places", UserWarning, stacklevel=5)
