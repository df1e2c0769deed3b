"""What does a Tree demand of the branches at one depth?"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from worker_client.inprocess.state import State


class LayerFlag(enum.Flag):
    """The branches that may be searched for a rank to replace a lost active one."""

    RESERVE = enum.auto()  # for an inactive rank
    BACKFILL = enum.auto()  # for the active rank with the largest number


@dataclass
class Layer:
    """`key_or_fn` tells the branches of this depth apart: ranks of one parent with the same key share one."""

    min_ranks: int = 1  # a branch with fewer healthy ranks is given up
    max_ranks: int | None = None  # no more are activated in a branch at the start
    key_or_fn: str | int | Callable[[State], object] = ""
    flag: LayerFlag | None = None

    def has(self, flag: LayerFlag) -> bool:
        return self.flag is not None and flag in self.flag

    def rules(self) -> str:
        """Returns what has to be the same on every rank, as text."""
        most = "any" if self.max_ranks is None else self.max_ranks
        return f"{self.min_ranks} to {most} ranks, {self.flag}"
