"""The rules of a Tree in a slow, obvious form over linked branches, to compare with the flat lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from worker_client.inprocess.rank_assignment import Layer, LayerFlag


@dataclass(eq=False)
class Leaf:
    initial: int
    parent: Branch
    mode: str = "inactive"  # or "active", "dead"
    active_rank: int | None = None
    current_rank: int = -1


@dataclass(eq=False)
class Branch:
    layer: Layer
    parent: Branch | None = None
    branches: dict[str, Branch] = field(default_factory=dict[str, "Branch"])
    own_leaves: list[Leaf] = field(default_factory=list[Leaf])
    spares: list[Leaf] = field(default_factory=list[Leaf])

    def walk(self) -> Iterator[Branch]:
        """Yields children before parents."""
        for branch in self.branches.values():
            yield from branch.walk()
        yield self

    def leaves(self) -> list[Leaf]:
        return [*(leaf for branch in self.branches.values() for leaf in branch.leaves()), *self.own_leaves]

    def count(self, *modes: str) -> int:
        return sum(leaf.mode in modes for leaf in self.leaves())


def above(branch: Branch | None) -> Iterator[Branch]:
    while branch is not None:
        yield branch
        branch = branch.parent


class ObviousTree:
    """Ranks are initial ones throughout; `active` and `current` give their present numbers."""

    def __init__(
        self,
        layers: Sequence[Layer],
        keys: Sequence[Sequence[str]],
        world_size_filter: Callable[[int], int] | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        self.filter = world_size_filter
        self.in_order = in_order
        self.root = Branch(layers[0])
        for rank, row in enumerate(keys):
            branch = self.root
            for layer, key in zip(layers[1:], row[1:], strict=True):
                branch = branch.branches.setdefault(key, Branch(layer, branch))
            branch.own_leaves.append(Leaf(rank, branch))
        self.leaves = self.root.leaves()
        activated = 0
        for leaf in self.leaves:
            limits = [(b.count("active"), b.layer.max_ranks) for b in above(leaf.parent)]
            if all(limit is None or count < limit for count, limit in limits):
                leaf.mode, leaf.active_rank = "active", activated
                activated += 1
            else:
                self.push(leaf)
        self.narrow()

    def push(self, leaf: Leaf) -> None:
        for branch in above(leaf.parent):
            branch.spares.append(leaf)

    def unpush(self, leaf: Leaf) -> None:
        for branch in above(leaf.parent):
            if leaf in branch.spares:
                branch.spares.remove(leaf)

    def restart(self, die: set[int]) -> None:
        dead = [leaf for leaf in self.leaves if leaf.initial in die]
        for leaf in dead:
            leaf.mode = "dead"
        for branch in self.root.walk():
            if branch.count("active", "inactive") < branch.layer.min_ranks:
                for leaf in branch.leaves():
                    leaf.mode = "dead"
        for leaf in self.leaves:
            if leaf.mode == "dead":
                self.unpush(leaf)
        lost = [leaf for leaf in self.leaves if leaf.mode == "dead" and leaf.active_rank is not None]
        lost.sort(key=lambda leaf: leaf.current_rank)
        lost = [leaf for leaf in lost if not self.replace(leaf)]
        gaps = self.backfill(lost)
        for leaf in self.leaves:
            if leaf.mode == "active":
                assert leaf.active_rank is not None
                leaf.active_rank -= sum(gap < leaf.active_rank for gap in gaps)
            elif leaf.mode == "dead":
                leaf.active_rank = None
        self.narrow()

    def replace(self, leaf: Leaf) -> bool:
        for branch in above(leaf.parent):
            if not branch.layer.has(LayerFlag.RESERVE):
                return False
            if branch.spares:
                spare = branch.spares[0 if self.in_order else -1]
                self.unpush(spare)
                spare.mode, spare.active_rank, leaf.active_rank = "active", leaf.active_rank, None
                return True
        return False

    def backfill(self, lost: list[Leaf]) -> set[int]:
        """Fills what it can; returns the active ranks that nobody has any more."""
        gaps = {leaf.active_rank for leaf in lost if leaf.active_rank is not None}
        domains: dict[int, tuple[Branch, list[Leaf]]] = {}
        for leaf in lost:
            domain = self.domain(leaf)
            if domain is not None:
                domains.setdefault(id(domain), (domain, []))[1].append(leaf)
        for domain, leaves in domains.values():
            live = [leaf for leaf in domain.leaves() if leaf.mode == "active"]
            live.sort(key=lambda leaf: -1 if leaf.active_rank is None else leaf.active_rank)
            for leaf, mover in zip(leaves, live[-len(leaves) :], strict=False):
                assert leaf.active_rank is not None
                assert mover.active_rank is not None
                gaps.remove(leaf.active_rank)
                gaps.add(mover.active_rank)
                mover.active_rank = leaf.active_rank
        return gaps

    def domain(self, leaf: Leaf) -> Branch | None:
        found = None
        for branch in above(leaf.parent):
            if not branch.layer.has(LayerFlag.BACKFILL):
                break
            found = branch
        return found

    def narrow(self) -> None:
        if self.filter is not None:
            wanted = self.filter(self.root.count("active"))
            for leaf in self.leaves:
                if leaf.mode == "active" and leaf.active_rank is not None and leaf.active_rank >= wanted:
                    leaf.mode, leaf.active_rank = "inactive", None
                    self.push(leaf)
        for place, leaf in enumerate(leaf for leaf in self.leaves if leaf.mode != "dead"):
            leaf.current_rank = place

    def current(self) -> dict[int, int]:
        """Returns initial rank → current rank of live ranks."""
        return {leaf.initial: leaf.current_rank for leaf in self.leaves if leaf.mode != "dead"}

    def active(self) -> dict[int, int]:
        """Returns initial rank → active rank."""
        return {
            leaf.initial: leaf.active_rank
            for leaf in self.leaves
            if leaf.mode == "active" and leaf.active_rank is not None
        }
