"""How do the main thread and the monitor thread wait for the coordinator's decisions, and how do these reach them?

This module guards the rank's state in the call (rank_call_state.py) with one lock and turns its words into frames. The
channel's thread delivers messages and answers an Interrupt by itself, whatever the main thread does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta

from holdfast_wire.call_bounds import EXCHANGE_NAMES_MAX

from worker_client import call_protocol, rank_text
from worker_client.call_protocol import (
    BeginIteration,
    CallEnter,
    CallEvent,
    CallLeave,
    CallRefused,
    CallSettings,
    Entered,
    ExchangeValue,
    IterationBegan,
    Leaving,
    RankFault,
    Restart,
)
from worker_client.inprocess.attribution import Interruption
from worker_client.inprocess.coordinating import rank_call_state
from worker_client.inprocess.coordinating.guarded_condition import GuardedCondition
from worker_client.inprocess.coordinating.rank_call_state import Answer, CallPhase, Link, Move, Outcome, WaitOverdue
from worker_client.inprocess.exception import InternalError, RestartAbort, RestartError
from worker_client.inprocess.state import State
from worker_client.inprocess.store import BarrierTimeout

Plan = Entered | BeginIteration

_LOST = {Interruption.TERMINATED.name, Interruption.UNRESPONSIVE.name}
_ANSWER_S = 1.0  # for the supervisor to say which ranks are missing
SLICE_S = 1.0  # of a time in which this process was suspended, so much counts at most
_FIND_THEM = "see holdfast stacks, or give a longer timeout"


class Superseded(RestartError):
    """Raised while ranks are assigned by a decision that a new coordinator has not heard of; `plan` replaces it."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(f"iteration {plan.iteration} was decided")
        self.plan = plan


class Coordination:
    """The waits and messages of one call. Waits raise InternalError if the supervisor refuses the rank or the call."""

    def __init__(self, call: int, state: State, settings: CallSettings, say: Callable[[bytes], None]) -> None:
        """`say` sends a frame while there is a connection; it must not block."""
        self._call = call
        self._initial_world_size = state.initial_world_size
        self._say_now = say
        self._changed = GuardedCondition()
        entry = CallEnter(call, state.initial_rank, state.initial_world_size, settings)
        self._own = rank_call_state.State(entry, state.rank, state.world_size)
        self._followed: Plan | None = None  # by which the main thread assigns ranks
        self._is_closed = False  # the monitor thread has nothing more to wait for

    # --- called by the main thread ---

    def enter(self, timeout: timedelta) -> Entered | None:
        """Blocks until all ranks have entered. Raises BarrierTimeout.

        A late rank waits for the next iteration, without a limit. None: the call ended without another iteration.
        """
        with self._changed:
            self._step(Move.ENTRY_ASKED)
            self._wait(self._is_answered, timeout, WaitOverdue())
            while self._own.admission is Answer.LATE:
                self._wait(lambda: self._own.admission is not Answer.LATE)
                self._wait(self._is_answered, timeout, WaitOverdue())
            match self._own.admission:
                case Answer.OVER:
                    return None
                case Entered() as entered:
                    self._followed = self._own.plan
                    return entered
                case _:
                    pass
            cannot = f"cannot enter call {self._call} with {self._initial_world_size} ranks within {timeout}"
            if not self._own.is_connected:
                raise BarrierTimeout(f"{cannot}: the supervisor can't be reached; see its log")
            have = "has" if self._own.missing is not None and self._own.missing.total == 1 else "have"
            raise BarrierTimeout(
                f"{cannot}: {self._missing()} {have} not called it; call it equally often on all ranks; see holdfast "
                "stacks"
            )

    def assign(self, iteration: int) -> None:
        """Notes that rank assignment for `iteration` begins: later exchanges belong to it."""
        with self._changed:
            self._step(rank_call_state.AssignmentBegun(iteration))

    def exchange(self, name: str, value: str, *, rank: int, timeout: timedelta) -> dict[int, str]:
        """Returns the values of all ranks that take part in the assignment. Blocks.

        Raises Superseded, BarrierTimeout, and ValueError if a value is too long or there are too many.
        """
        with self._changed:
            self._check_plan()
            key = self._own.assigning, name
            if key not in self._own.exchanged:
                self._check_names(name)
                given = ExchangeValue(self._call, self._own.assigning, name, rank, value)
                call_protocol.frame(given)  # raises for what is too long
                self._step(given)
                self._wait(lambda: key in self._own.exchanged or self._newer() is not None, timeout, WaitOverdue(name))
            self._check_plan()
            if key not in self._own.exchanged:
                raise BarrierTimeout(
                    f"cannot exchange {name!r}: {self._missing()} gave no value within {timeout}; {_FIND_THEM}"
                )
            return dict(self._own.exchanged[key])

    def begin(self, state: State) -> None:
        """Reports that rank assignment is done; the rank begins the iteration as `state` says. Raises Superseded."""
        with self._changed:
            self._check_plan()
            numbers = state.rank, state.world_size, state.active_rank, state.active_world_size or 0
            self._step(IterationBegan(self._call, self._own.assigning, *numbers))

    def fail(self, interruption: str, reason: str) -> bool:
        """Reports a fault of this rank. Returns False if the restart was ordered earlier and so caused the fault."""
        with self._changed:
            self._step(Move.FUNCTION_LEFT)
            if self._own.is_restart_ordered:
                return False
            self._step(self._fault(interruption, reason))
            return True

    def is_interrupted(self) -> bool:
        """Returns whether a restart is ordered, or will be without any report from this rank, or the call refused."""
        with self._changed:
            return self._own.is_interrupted

    def wait_for_order(self, timeout: timedelta) -> bool:
        """Blocks until the restart is ordered; returns whether it was."""
        with self._changed:
            self._step(Move.FUNCTION_LEFT)
            return self._wait(lambda: self._own.is_restart_ordered, timeout)

    def has_lost_peers(self) -> bool:
        """Returns whether another rank's process had ended or was out of reach before this rank's own fault.

        The order of the restart lists the faults as they were seen. A later death may be the result of this one.
        """
        with self._changed:
            before = itertools.takewhile(lambda fault: fault.rank != self._own.rank, self._own.now.ordered)
            return any(fault.interruption in _LOST for fault in before)

    def wait_for_completion(self) -> bool:
        """Blocks an inactive rank until an active one has returned (True) or the restart is ordered (False)."""
        with self._changed:
            self._wait(lambda: self._own.now.outcome is Outcome.COMPLETED or self._own.now.outcome.is_final)
            return not self._own.is_restart_ordered

    def complete(self, timeout: timedelta | None) -> bool:
        """Blocks until all ranks have arrived (True) or the restart is ordered (False). Raises BarrierTimeout."""
        with self._changed:
            self._step(Move.COMPLETION_REACHED)
            # A signal handler that raises here is a fault of the iteration, as in the function.
            if not self._wait(lambda: self._own.now.outcome.is_final, timeout, WaitOverdue(), guarded=False):
                raise BarrierTimeout(
                    f"cannot complete iteration {self._own.iteration}: {self._missing()} did not return from the "
                    f"function within {timeout}; {_FIND_THEM}"
                )
            return self._own.now.outcome is Outcome.COMMITTED

    def arrive(self, timeout: timedelta) -> BeginIteration:
        """Blocks at the end of the iteration until the next one is decided. Raises BarrierTimeout."""
        with self._changed:
            self._step(Move.RESTART_REACHED)
            self._wait(lambda: self._own.decided is not None, timeout, WaitOverdue())
            if self._own.decided is None:
                raise BarrierTimeout(
                    f"cannot restart after iteration {self._own.iteration}: {self._missing()} did not end theirs "
                    f"within {timeout}; {_FIND_THEM}"
                )
            self._followed = self._own.decided
            return self._own.decided

    def leave(self, why: Leaving, reason: str, *, is_unfit: bool = False) -> None:
        """Reports that this rank takes no further part. Idempotent."""
        with self._changed:
            self._step(CallLeave(self._call, self._own.assigning, why, reason, is_unfit))

    def wait_for_others(self, timeout: timedelta) -> None:
        """Blocks, after `leave()`, until the others continue or no other rank is left."""

        def go_on() -> bool:
            decided = self._own.decided
            return decided is not None and decided.iteration > self._own.assigning

        with self._changed:
            self._wait(go_on, timeout)

    def close(self) -> None:
        """Ends the monitor thread's wait. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # --- called by any thread ---

    def interrupt(self, interruption: str, reason: str) -> bool:
        """Does the same as `fail()` for a main thread that is inside the function; returns False if it is not.

        Neither is one that a signal handler has interrupted in the middle of a change here.
        """
        if self._changed.is_held_here():
            return False
        with self._changed:
            if self._own.phase is not CallPhase.RUNNING or self._own.is_restart_ordered:
                return False
            self._step(self._fault(interruption, reason))
            return True

    # --- called by the monitor thread ---

    def next_restart(self, last: int) -> Restart | None:
        """Blocks until a restart of this rank's iteration, later than `last`, is ordered; None: no more restarts.

        A refusal of a rank that is in the function counts as an order without faults.
        """

        def is_over() -> bool:
            return self._is_closed or self._own.phase is CallPhase.LEFT

        with self._changed:
            self._changed.wait_for(lambda: is_over() or self._own.restart_after(last) is not None)
            return None if is_over() else self._own.restart_after(last)

    # --- called by the channel's thread ---

    def connected(self) -> None:
        """Reports the rank's state to a supervisor that may know nothing."""
        with self._changed:
            self._step(Link.CONNECTED)

    def disconnected(self) -> None:
        with self._changed:
            self._step(Link.DISCONNECTED)

    def refused(self, reason: str) -> None:
        with self._changed:
            self._step(CallRefused(self._call, reason))

    def heard(self, event: CallEvent) -> None:
        with self._changed:
            if event.call == self._call:
                self._step(event)

    def must_be_heard(self) -> bool:
        """Returns whether other ranks wait until the supervisor knows that this rank has left."""
        with self._changed:
            left = self._own.left
            return left is not None and left.why is not Leaving.DONE

    def needs_supervisor(self) -> bool:
        """Returns whether this rank still needs a decision to finish."""
        with self._changed:
            return not self._is_closed and self._own.needs_supervisor

    # --- under the lock ---

    def _is_answered(self) -> bool:
        """Returns whether the supervisor has answered the entry. A refusal raises anyway."""
        return self._own.admission is not Answer.NONE and not isinstance(self._own.admission, CallRefused)

    def _newer(self) -> Plan | None:
        """Returns the plan that replaces the followed one; None: it still counts."""
        return self._own.plan if self._own.plan != self._followed else None

    def _check_plan(self) -> None:
        if (newer := self._newer()) is not None:
            self._followed = newer
            raise Superseded(newer)

    def _check_names(self, name: str) -> None:
        known = (*self._own.exchanged, *self._own.given)
        names = {each for iteration, each in known if iteration == self._own.assigning}
        if len(names - {name}) >= EXCHANGE_NAMES_MAX:
            raise ValueError(
                f"cannot exchange {name[:40]!r}: one rank assignment has {EXCHANGE_NAMES_MAX} names at most; exchange "
                "several values under one name"
            )

    def _step(self, event: rank_call_state.Event) -> None:
        self._own, words = rank_call_state.step(self._own, event)
        self._changed.notify_all()
        for word in words:
            self._say_now(call_protocol.frame(word))

    def _wait(
        self,
        is_over: Callable[[], bool],
        timeout: timedelta | None = None,
        overdue: WaitOverdue | None = None,
        *,
        guarded: bool = True,
    ) -> bool:
        """Blocks until `is_over()`; returns whether it is. Raises InternalError, or RestartAbort after a give-up.

        `overdue`: asks after the timeout which ranks are missing, and waits briefly for the answer. `guarded`: what a
        signal handler raises does not end the wait.
        """
        wait = self._changed.wait_until if guarded else self._changed.wait_for

        def is_decided() -> bool:
            return isinstance(self._own.admission, CallRefused) or is_over()

        if not _waited_in_slices(wait, is_decided, timeout) and overdue is not None:
            self._step(overdue)
            if self._own.is_connected:
                wait(lambda: is_decided() or self._own.missing is not None, _ANSWER_S)
        if is_over():
            return True
        if isinstance(refused := self._own.admission, CallRefused):
            raise (RestartAbort if refused.given_up else InternalError)(refused.reason)
        return False

    def _missing(self) -> str:
        """Returns "rank 3" or "ranks 3, 7 and 41 more", by initial rank; "some ranks" if there was no answer."""
        if (missing := self._own.missing) is None:
            return "some ranks"
        return rank_text.named(missing.ranks, missing.total)

    def _fault(self, interruption: str, reason: str) -> RankFault:
        return RankFault(self._call, self._own.iteration, self._own.rank, interruption, reason)


def _waited_in_slices(
    wait: Callable[[Callable[[], bool], float | None], bool], is_over: Callable[[], bool], timeout: timedelta | None
) -> bool:
    """Blocks until `is_over()`, and returns whether it is.

    The other ranks may be suspended together with this process, so that time counts little.
    """
    if timeout is None:
        return wait(is_over, None)
    left_s = timeout.total_seconds()
    while not wait(is_over, min(left_s, SLICE_S)):
        left_s -= SLICE_S
        if left_s <= 0:
            return False
    return True
