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
    """The context that goes through all steps of an assignment. Steps change it and pass on the same object.

    `terminated_ranks` are current numbers: those of `state.rank` at this step.
    """

    state: State
    store: RankStore
    terminated_ranks: set[int]
    _exchanges: int = field(default=0, init=False, repr=False, compare=False)

    def exchange(self, label: str, value: str, timeout: timedelta) -> dict[int, str]:
        """Returns the values of all ranks that are not terminated, by current rank. Blocks; raises BarrierTimeout.

        A rank that died meanwhile is missing on all ranks alike, and is added to `terminated_ranks`.
        Every rank has to make the same exchanges in the same order: they are told apart by their number.
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

    It runs on every rank, and must come to the same result on all of them: from the context, and from what the ranks
    exchanged, never from a clock, a random number or the machine.
    """

    activates: ClassVar[bool] = False  # also says which ranks call the wrapped function

    @abstractmethod
    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx: ...

    def fresh(self) -> RankAssignment:
        """Returns the one to use in the next call, or after new processes have joined: both start again.

        Override it in a class that remembers something between two restarts.
        """
        return self

    @classmethod
    def check_composition(cls, instances: tuple[object, ...]) -> None:
        """Raises TypeError where `instances` would undo each other's work."""
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
