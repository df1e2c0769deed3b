"""What does a Tree require of the branches at one depth?"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker_client.inprocess.state import State


class LayerFlag(enum.Flag):
    """The branches that may be searched for a rank to replace a lost active one."""

    RESERVE = enum.auto()  # for an inactive rank
    BACKFILL = enum.auto()  # for the active rank with the largest number


@dataclass
class Layer:
    """One depth of a Tree. `key_or_fn` separates its branches: ranks of one parent with the same key share one."""

    min_ranks: int = 1  # a branch with fewer healthy ranks is dropped
    max_ranks: int | None = None  # the most that are activated in a branch at the start
    key_or_fn: str | int | Callable[[State], object] = ""
    flag: LayerFlag | None = None

    def has(self, flag: LayerFlag) -> bool:
        return self.flag is not None and flag in self.flag

    def rules(self) -> str:
        """Returns, as text, the rules that must be the same on every rank."""
        most = "any" if self.max_ranks is None else self.max_ranks
        return f"{self.min_ranks} to {most} ranks, {self.flag}"


def idle_flags(layers: Sequence[Layer]) -> list[str]:
    """Returns a sentence for each flag that nothing reaches: a search goes up from the deepest layer, without gaps."""
    sentences: list[str] = []
    for flag in LayerFlag:
        gap = next((i for i in reversed(range(len(layers))) if not layers[i].has(flag)), -1)
        above = [i for i in range(gap) if layers[i].has(flag)]
        if above:
            places = ", ".join(map(str, above))
            sentences.append(
                f"LayerFlag.{flag.name} of layer {places} has no effect: layer {gap} below has none, and the search "
                f"goes up from the deepest layer; give layers {above[0]} to {len(layers) - 1} the flag, or remove it"
            )
    return sentences
