"""Which rank, and of how many, is this process in the next iteration, and is any rank left to call the function?

All ranks run the same assignment on the same decisions, so they agree without communicating. Values that an assignment
needs from other ranks go through the supervisor.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING

from worker_client.call_protocol import Entered
from worker_client.inprocess.compose import fresh, kept
from worker_client.inprocess.exception import InternalError, RestartAbort
from worker_client.inprocess.rank_assignment import RankAssignment, RankAssignmentCtx, assign

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

    from worker_client.call_protocol import BeginIteration
    from worker_client.inprocess.coordinating.coordination import Coordination, Plan
    from worker_client.inprocess.state import State
    from worker_client.inprocess.watching.main_thread_watch import MainThreadWatch


class Membership(enum.Enum):
    """What this rank is to the others."""

    JOINING = enum.auto()  # no assignment is complete yet
    ASSIGNED = enum.auto()
    DESERTED = enum.auto()  # assigned, with no active rank anywhere: all ranks know, and all end


class IterationRanks:
    """The ranks of one call. Writes this process's rank into `state`; belongs to the main thread."""

    def __init__(
        self, state: State, assignment: RankAssignment, coordination: Coordination, watch: MainThreadWatch
    ) -> None:
        self.membership = Membership.JOINING
        self._state = state
        self._assignment = fresh(assignment)
        self._coordination = coordination
        self._store = _AssignmentStore(coordination, watch)
        self._before = state.freeze(), self._assignment

    def assign(self, plan: Plan) -> None:
        """Advances to the iteration that was decided. Raises what an assignment raises, RestartAbort, Superseded."""
        # Without the exception, which keeps objects of the failed iteration alive.
        self._before = replace(self._state.freeze(), fn_exception=None), kept(self._assignment)
        if isinstance(plan, Entered):
            self._catch_up(plan)
        else:
            self._assign(plan.iteration, plan)
            self._state.advance(plan.iteration)
        self._note_assigned()

    def take_back(self) -> None:
        """Forgets the last assignment: another decision replaces the one that it followed."""
        before, self._assignment = self._before
        self._state.copy_from(before)

    def exchange(self, name: str, value: str, timeout: timedelta) -> dict[int, str]:
        """Returns the values that all ranks have given under `name`. Blocks; raises BarrierTimeout, Superseded."""
        ranks = range(self._state.world_size)
        return self._store.exchange(name, value, rank=self._state.rank, ranks=ranks, timeout=timeout)

    def _catch_up(self, entered: Entered) -> None:
        """Repeats all assignments up to the next iteration, because a rank that replaces a lost one has missed some."""
        decisions = {decision.iteration: decision for decision in entered.history}
        first = next((each.iteration for each in entered.history if each.anew), 0)
        self._state.iteration = first
        for iteration in range(first, entered.iteration + 1):
            self._assign(iteration, decisions.get(iteration))
            if iteration > first:
                self._state.advance()

    def _assign(self, iteration: int, decision: BeginIteration | None) -> None:
        """Runs the assignment. Without a decision, all ranks of the world take part."""
        state = self._state
        if decision is not None and decision.anew:
            state.start_again()
            self._assignment = fresh(self._assignment)
        if decision is not None and decision.world_size != state.world_size:
            raise InternalError(
                f"cannot begin iteration {iteration}: it was decided for {decision.world_size} ranks, but rank "
                f"{state.rank} knows of {state.world_size}; end all ranks of the job, and start it again"
            )
        self._coordination.assign(iteration)
        terminated = set[int]() if decision is None else set(decision.terminated_ranks)
        assigned = assign(self._assignment, RankAssignmentCtx(state, self._store, terminated))
        state.copy_from(assigned.state)

    def _note_assigned(self) -> None:
        if self._state.active_world_size:
            self.membership = Membership.ASSIGNED
            return
        self.membership = Membership.DESERTED
        raise RestartAbort(
            f"cannot begin iteration={self._state.iteration}: rank assignment left no rank active of "
            f"world_size={self._state.world_size}; change rank_assignment, or start more ranks"
        )


class _AssignmentStore:
    """A RankStore over the supervisor. While it waits for the other ranks, no progress is expected."""

    def __init__(self, coordination: Coordination, watch: MainThreadWatch) -> None:
        self._coordination = coordination
        self._watch = watch

    def exchange(
        self, name: str, value: str, *, rank: int, ranks: Collection[int], timeout: timedelta
    ) -> dict[int, str]:
        self._watch.off()
        try:
            return self._coordination.exchange(name, value, rank=rank, timeout=timeout)
        finally:
            self._watch.on()
