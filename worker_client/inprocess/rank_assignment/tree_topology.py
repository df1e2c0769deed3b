"""Which ranks share a branch at which depth of the tree? Pure.

Ranks are leaves. Leaves are numbered in tree order, so each branch is a range of them. The tree is stored as columns of
numbers instead of linked nodes: 100,000 ranks take a tenth of a second to build and milliseconds to walk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain


class Topology:
    """A tree made from the keys of each rank, in the order of the ranks: `keys[rank][layer]`.

    Ranks share a branch if their keys are the same from the root down to its layer. Branches are in order of first
    appearance. There is one root, so all keys of layer 0 are the same.
    """

    branch_of: list[list[int]]  # layer → leaf → branch
    leaf_of: list[int]  # rank → leaf

    def __init__(self, keys: Sequence[tuple[str, ...]], layers: int) -> None:
        paths = list(dict.fromkeys(keys))  # mostly few: ranks of one host have the same keys
        columns = [[0] * len(paths)]  # layer → path → branch
        for layer in range(1, layers):
            seen: dict[tuple[int, str], int] = {}
            parents = columns[-1]
            columns.append(
                [seen.setdefault((parent, path[layer]), len(seen)) for parent, path in zip(parents, paths, strict=True)]
            )
        order = list(range(len(paths)))
        for column in reversed(columns):
            order.sort(key=column.__getitem__)  # stable: the deepest layer first, so that the root's order wins
        members: dict[tuple[str, ...], list[int]] = {paths[path]: [] for path in order}
        for rank, path in enumerate(keys):
            members[path].append(rank)
        self.branch_of = [[column[path] for path in order for _ in members[paths[path]]] for column in columns]
        self.leaf_of = [0] * len(keys)
        for leaf, rank in enumerate(chain.from_iterable(members.values())):
            self.leaf_of[rank] = leaf

    @property
    def size(self) -> int:
        return len(self.leaf_of)

    def counts(self, layer: int, leaves: Iterable[int]) -> Counter[int]:
        """Returns how many of `leaves` each branch has."""
        return Counter(map(self.branch_of[layer].__getitem__, leaves))
