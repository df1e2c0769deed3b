"""What is a rank assignment: what is it given, what does it decide, and what may be composed?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from worker_client.inprocess.exception import RestartError
from worker_client.inprocess.state import State
from worker_client.inprocess.store import RankStore


class RankDiscarded(RestartError):
    """Raised by a rank assignment on a rank that takes no part in the next iteration."""


@dataclass
class RankAssignmentCtx:
    """The context of an assignment. Every step changes it and returns the same object.

    `terminated_ranks` are current numbers: those of `state.rank` at this step.
    """

    state: State
    store: RankStore
    terminated_ranks: set[int]
    _exchanges: int = field(default=0, init=False, repr=False, compare=False)

    def exchange(self, label: str, value: str, timeout: timedelta) -> dict[int, str]:
        """Returns the values of all ranks that are not terminated, by current rank. Blocks; raises BarrierTimeout.

        A rank that died meanwhile is missing on all ranks alike, and is added to `terminated_ranks`.
        Every rank must make the same exchanges in the same order, because they are identified by their number.
        """
        self._exchanges += 1
        ranks = [rank for rank in range(self.state.world_size) if rank not in self.terminated_ranks]
        values = self.store.exchange(
            f"{label}/{self._exchanges}", value, rank=self.state.rank, ranks=ranks, timeout=timeout
        )
        self.terminated_ranks.update(rank for rank in ranks if rank not in values)
        return values


class RankAssignment(ABC):
    """Gives the remaining ranks new numbers without gaps; raises RankDiscarded on those that leave.

    It runs on every rank and must give the same result on all of them. So it may use the context and the exchanged
    values, but never a clock, a random number or the machine.
    """

    activates: ClassVar[bool] = False  # also says which ranks call the wrapped function

    @abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx: ...

    def fresh(self) -> RankAssignment:
        """Returns the instance to use in the next call, or after new processes have joined: both start over.

        Override it in a class that remembers anything between restarts.
        """
        return self

    @classmethod
    def check_composition(cls, instances: tuple[object, ...]) -> None:
        """Raises TypeError if `instances` would undo each other's work."""
        for instance in instances:
            if isinstance(instance, RankAssignment):
                instance.check_beside(tuple(other for other in instances if other is not instance))

    def check_beside(self, others: tuple[object, ...]) -> None:  # noqa: B027  # most have no objection
        """Raises TypeError if this one can't be composed with `others`."""


class RankFilter(RankAssignment):
    """Says which of the ranks call the wrapped function; the others wait as a reserve."""

    activates = True

    @abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx: ...
