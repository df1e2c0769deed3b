"""Which ranks of a tree are active, which are in reserve, and which one replaces which?

A restart takes a few passes over flat lists plus work for each lost rank, but never a walk over all branches.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence

from worker_client.inprocess.rank_assignment.tree_layers import Layer, LayerFlag
from worker_client.inprocess.rank_assignment.tree_topology import Topology

_NO_SPARE = -1


class TreeRanks:
    """The state of the leaves of `topology`. Dead leaves keep their numbers and never come back."""

    living: list[int]  # leaves by current rank: in the order of the tree
    active: list[int]  # leaves by active rank

    def __init__(self, topology: Topology, layers: Sequence[Layer], *, in_order: bool = False) -> None:
        self._topology = topology
        self._layers = layers
        self._in_order = in_order
        self.living = list(range(topology.size))
        self._is_dead = bytearray(topology.size)
        # Every leaf searches the same layers: from the deepest one up, as far as the flag is set.
        self._reserve_layers = _chain(layers, LayerFlag.RESERVE)
        self._backfill_layers = _chain(layers, LayerFlag.BACKFILL)
        self._guarded_layers = [i for i in reversed(range(len(layers))) if layers[i].min_ranks > 1]
        self._healthy = {i: topology.counts(i, self.living) for i in self._guarded_layers}
        self._guarded_before = False
        self._push_number = [_NO_SPARE] * topology.size  # by leaf, for spares
        self._pushed: list[int] = []  # push number → leaf
        # Layer → branch → push numbers, including those of leaves that are no longer spares.
        self._stacks: dict[int, dict[int, deque[int]]] = {i: {} for i in self._reserve_layers}
        self.active = self._activated()

    def kept(self) -> TreeRanks:
        """Returns a copy, which does not change with these."""
        shared = (self._topology, self._layers)  # these never change
        return copy.deepcopy(self, {id(each): each for each in shared})

    def restart(self, dead: Iterable[int]) -> dict[int, int | None]:
        """Replaces, fills and shifts after `dead` leaves. Returns all that drop out, with the layer that drops them.

        The layer is None for the leaves of `dead` itself.
        """
        fallen = self._fallen(dead)
        for leaf in fallen:
            self._is_dead[leaf] = True
            self._push_number[leaf] = _NO_SPARE
        if not fallen:
            return fallen
        is_dead = self._is_dead
        places = {leaf: place for place, leaf in enumerate(self.active) if is_dead[leaf]}
        unfilled: list[int] = []
        for leaf in sorted(places):
            spare = self._spare_near(leaf)
            if spare is None:
                unfilled.append(leaf)
            else:
                self.active[places[leaf]] = spare
        self._backfill(unfilled, places)
        self.active = [leaf for leaf in self.active if not is_dead[leaf]]
        self.living = [leaf for leaf in self.living if not is_dead[leaf]]
        return fallen

    def narrow(self, world_size_filter: Callable[[int], int]) -> None:
        """Lets the filter reduce the active ranks; those with the largest numbers become spares."""
        size = len(self.active)
        wanted = world_size_filter(size)
        if not 0 <= wanted <= size:
            raise AssertionError(
                f"cannot activate {wanted} of {size} ranks: that many are not there; "
                f"return 0 to {size} from world_size_filter"
            )
        self._push(sorted(self.active[wanted:]))
        del self.active[wanted:]

    def _activated(self) -> list[int]:
        """Returns the leaves in order, each active if all branches above it permit one more."""
        limits = [
            (layer.max_ranks, self._topology.branch_of[i], Counter[int]())
            for i, layer in enumerate(self._layers)
            if layer.max_ranks is not None
        ]
        if not limits:
            return list(self.living)
        active: list[int] = []
        spares: list[int] = []
        for leaf in self.living:
            for most, branch_of, counts in limits:
                if counts[branch_of[leaf]] >= most:
                    spares.append(leaf)
                    break
            else:
                active.append(leaf)
                for _, branch_of, counts in limits:
                    counts[branch_of[leaf]] += 1
        self._push(spares)
        return active

    def _fallen(self, dead: Iterable[int]) -> dict[int, int | None]:
        """Returns `dead` and the leaves of all branches with too few left, the deepest layers first."""
        fallen: dict[int, int | None] = dict.fromkeys(dead)
        for i in self._guarded_layers:
            layer, healthy, branch_of = self._layers[i], self._healthy[i], self._topology.branch_of[i]
            lost = self._topology.counts(i, fallen)
            healthy.subtract(lost)
            # The first time all branches, since one may be too small from the start; later only those with losses.
            looked_at: Collection[int] = lost if self._guarded_before else healthy
            weak = {branch for branch in looked_at if 0 < healthy[branch] < layer.min_ranks}
            if weak:
                for leaf in self.living:
                    if branch_of[leaf] in weak:
                        fallen.setdefault(leaf, i)
                for branch in weak:
                    healthy[branch] = 0
        self._guarded_before = True
        return fallen

    def _push(self, leaves: Iterable[int]) -> None:
        for leaf in leaves:
            number = self._push_number[leaf] = len(self._pushed)
            self._pushed.append(leaf)
            for i in self._reserve_layers:
                self._stacks[i].setdefault(self._topology.branch_of[i][leaf], deque()).append(number)

    def _spare_near(self, leaf: int) -> int | None:
        """Takes a spare from the nearest branch above `leaf` that has one."""
        for i in self._reserve_layers:
            stack = self._stacks[i].get(self._topology.branch_of[i][leaf])
            while stack:
                number = stack.popleft() if self._in_order else stack.pop()
                spare = self._pushed[number]
                if self._push_number[spare] == number:
                    self._push_number[spare] = _NO_SPARE
                    return spare
        return None

    def _backfill(self, unfilled: list[int], places: dict[int, int]) -> None:
        """Swaps the last active ranks with the dead ones in each branch that may be searched."""
        if not self._backfill_layers or not unfilled:
            return
        branch_of = self._topology.branch_of[self._backfill_layers[-1]]
        lost: dict[int, list[int]] = {}
        for leaf in unfilled:
            lost.setdefault(branch_of[leaf], []).append(leaf)
        movers: dict[int, list[int]] = {branch: [] for branch in lost}  # their places, the last one first
        missing = len(unfilled)
        for place in range(len(self.active) - 1, -1, -1):
            branch = branch_of[self.active[place]]
            if branch not in lost or self._is_dead[self.active[place]] or len(movers[branch]) == len(lost[branch]):
                continue
            movers[branch].append(place)
            missing -= 1
            if not missing:
                break
        for branch, leaves in lost.items():
            for leaf, place in zip(leaves, reversed(movers[branch]), strict=False):  # there may be fewer movers
                self.active[places[leaf]], self.active[place] = self.active[place], leaf


def _chain(layers: Sequence[Layer], flag: LayerFlag) -> list[int]:
    """Returns the layers from the deepest one up, until one lacks the flag."""
    chain: list[int] = []
    for i in reversed(range(len(layers))):
        if not layers[i].has(flag):
            break
        chain.append(i)
    return chain
