"""Where does this rank stand in a wrapped call, what has the coordinator decided, and what is still to be told?

The client's half of the protocol in holdfast_wire/v1/worker.proto. It decides nothing: it tells where the rank stands,
again after each lost connection, and lets the main thread and the monitor thread wait for what comes. The channel's
thread brings what comes, and answers Interrupt by itself, whatever the main thread does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta

from worker_client import call_frames
from worker_client.call_frames import (
    CallCompleted,
    CallEvent,
    CallRefused,
    CallUnderway,
    Committed,
    Entered,
    Exchanged,
    FaultTold,
    Interrupted,
    IterationDecided,
    Leaving,
    Position,
    RestartOrdered,
    Settings,
    Stage,
)
from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.state import State
from worker_client.inprocess.store import BarrierTimeout


class _Iteration:
    """What is known of one iteration."""

    def __init__(self) -> None:
        self.fault: tuple[str, str] | None = None  # this rank's own: interruption, reason
        self.is_interrupted = False
        self.faults: tuple[FaultTold, ...] | None = None  # the restart was ordered, because of these
        self.is_completed = False
        self.is_committed = False


class Coordination:
    """One call. Waits raise InternalError when the supervisor has refused the rank or the call."""

    def __init__(self, call: int, state: State, settings: Settings, say: Callable[[bytes], None]) -> None:
        """`say` sends a frame while there is a connection; it must not block."""
        self._call = call
        self._initial_rank, self._initial_world_size = state.initial_rank, state.initial_world_size
        self._settings = settings
        self._say_now = say
        self._changed = threading.Condition(threading.Lock())
        self._is_connected = False
        self._refusal: str | None = None
        self._is_closed = False
        self._position = Position(Stage.ENTERING, 0, state.rank, state.world_size, is_active=False)
        self._assigning = 0  # the iteration for which ranks are being assigned, or were last
        self._began: bytes | None = None
        self._left: bytes | None = None
        self._is_entering = False
        self._entered: Entered | None = None
        self._is_late = False  # the others have begun without this rank
        self._is_over = False  # and have succeeded without it
        self._decided: IterationDecided | None = None
        self._iterations: dict[int, _Iteration] = {}
        self._unanswered: dict[tuple[int, str], bytes] = {}  # values given, until all have given theirs
        self._exchanged: dict[tuple[int, str], Mapping[int, str]] = {}

    # --- called by the main thread ---

    def enter(self, timeout: timedelta) -> Entered | None:
        """Blocks until all ranks have entered. Raises BarrierTimeout.

        A rank that comes late waits for the next iteration, without a limit. None: there was none, the call is over.
        """
        with self._changed:
            self._is_entering = True
            self._say(self._enter_frame())
            self._wait(lambda: self._is_late or self._is_entered(), timeout)
            while self._is_late and not self._is_entered():
                self._wait(lambda: not self._is_late or self._is_entered())
                self._wait(lambda: self._is_late or self._is_entered(), timeout)
            if self._is_over:
                return None
            if self._entered is None:
                why = "not all ranks came; all of them must call the wrapped function, and as often"
                if not self._is_connected:
                    why = "the supervisor cannot be reached"
                raise BarrierTimeout(
                    f"cannot enter call {self._call} with {self._initial_world_size} ranks within {timeout}: {why}"
                )
            for each in self._entered.exchanges:
                self._exchanged[each.iteration, each.name] = each.values
            return self._entered

    def assign(self, iteration: int) -> None:
        """Rank assignment for `iteration` begins: exchanges are its own from now on."""
        with self._changed:
            self._assigning = iteration

    def exchange(self, name: str, value: str, *, rank: int, timeout: timedelta) -> dict[int, str]:
        """The values of all ranks that take part in the assignment. Blocks; raises BarrierTimeout, ValueError."""
        with self._changed:
            key = self._assigning, name
            if key not in self._exchanged:
                frame = call_frames.exchange_value(self._call, self._assigning, name=name, rank=rank, value=value)
                self._unanswered[key] = frame
                self._say(frame)
                self._wait(lambda: key in self._exchanged, timeout)
                del self._unanswered[key]
            if key not in self._exchanged:
                raise BarrierTimeout(f"cannot exchange {name!r}: not all ranks have given a value within {timeout}")
            return dict(self._exchanged[key])

    def begin(self, state: State) -> None:
        """Rank assignment is done; `state` says as what the rank begins the iteration."""
        with self._changed:
            iteration = self._assigning
            is_active = state.active_rank is not None
            self._position = Position(Stage.RUNNING, iteration, state.rank, state.world_size, is_active)
            self._iterations = {number: each for number, each in self._iterations.items() if number >= iteration}
            self._exchanged.clear()
            self._decided = None
            self._began = call_frames.iteration_began(
                self._call, iteration, rank=state.rank, world_size=state.world_size,
                active_rank=state.active_rank, active_world_size=state.active_world_size or 0,
            )  # fmt: skip
            self._say(self._began)
            self._changed.notify_all()

    def fail(self, interruption: str, reason: str) -> bool:
        """This rank has a fault. False where the restart was ordered already, so that it only follows from that."""
        with self._changed:
            now = self._now()
            self._stand(Stage.UNWINDING)
            if now.faults is not None:
                return False
            if now.fault is None:
                now.fault = interruption, reason
                self._say(self._fault_frame(now.fault))
            return True

    def is_interrupted(self) -> bool:
        """Whether the restart is ordered, or will be without a word from this rank."""
        with self._changed:
            return self._now().is_interrupted or self._now().faults is not None

    def wait_for_order(self, timeout: timedelta) -> bool:
        """Blocks until the restart is ordered; whether it was."""
        with self._changed:
            self._stand(Stage.UNWINDING)
            return self._wait(lambda: self._now().faults is not None, timeout)

    def wait_for_completion(self) -> bool:
        """Blocks an inactive rank until an active one has returned (True) or the restart is ordered (False)."""
        with self._changed:
            self._wait(lambda: self._now().is_completed or self._now().faults is not None)
            return self._now().faults is None

    def complete(self, timeout: timedelta | None) -> bool:
        """Blocks until all ranks have come here: True. False: the restart is ordered. Raises BarrierTimeout."""
        with self._changed:
            self._stand(Stage.COMPLETING)
            self._say(call_frames.arrive_at_completion(self._call, self._position))
            now = self._now()
            self._wait(lambda: now.is_committed or now.faults is not None, timeout)
            if now.is_committed:
                return True
            if now.faults is None:
                raise BarrierTimeout(
                    f"cannot complete iteration {self._position.iteration}: not all ranks came within {timeout}"
                )
            return False

    def arrive(self, timeout: timedelta) -> IterationDecided:
        """Blocks at the end of the iteration until the next one is decided. Raises BarrierTimeout."""
        with self._changed:
            self._stand(Stage.RESTARTING)
            self._say(call_frames.arrive_at_iteration(self._call, self._position))
            self._wait(lambda: self._decided is not None, timeout)
            if self._decided is None:
                raise BarrierTimeout(
                    f"cannot restart after iteration {self._position.iteration}: not all ranks came within {timeout}"
                )
            return self._decided

    def leave(self, why: Leaving, reason: str) -> None:
        """This rank takes part in nothing more. Idempotent."""
        with self._changed:
            if self._left is None:
                self._left = call_frames.call_leave(self._call, self._assigning, why, reason)
                self._say(self._left)
            self._changed.notify_all()

    def wait_for_others(self, timeout: timedelta) -> None:
        """After `leave()`: blocks until the others go on, or nobody is left to do so."""
        with self._changed:
            self._wait(lambda: self._decided is not None and self._decided.iteration > self._assigning, timeout)

    def close(self) -> None:
        """Ends the monitor thread's wait. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # --- called by any thread ---

    def interrupt(self, interruption: str, reason: str) -> bool:
        """The same as `fail()` for a main thread that is inside the function; False where it is not."""
        with self._changed:
            now = self._now()
            if self._began is None or self._position.stage is not Stage.RUNNING or now.faults is not None:
                return False
            if now.fault is None:
                now.fault = interruption, reason
                self._say(self._fault_frame(now.fault))
            return True

    # --- called by the monitor thread ---

    def next_restart(self, last: int) -> RestartOrdered | None:
        """Blocks until the restart of an iteration after `last`, in which this rank is, is ordered; None: no more."""
        with self._changed:

            def is_ordered() -> bool:
                has_begun = self._began is not None and self._position.iteration > last
                return has_begun and self._now().faults is not None

            self._changed.wait_for(lambda: self._is_closed or self._left is not None or is_ordered())
            if self._is_closed or self._left is not None:
                return None
            return RestartOrdered(self._call, self._position.iteration, self._now().faults or ())

    # --- called by the channel's thread ---

    def connected(self) -> None:
        """There is a connection that knows nothing: says where the rank stands."""
        with self._changed:
            self._is_connected = True
            # Whoever said so may be gone: the barrier's timeout counts again until it is repeated.
            self._is_late = False
            self._changed.notify_all()
            for frame in self._standing() if self._is_entering else ():
                self._say(frame)

    def disconnected(self) -> None:
        with self._changed:
            self._is_connected = False

    def refused(self, reason: str) -> None:
        with self._changed:
            self._refusal = reason
            self._changed.notify_all()

    def heard(self, event: CallEvent) -> None:
        with self._changed:
            if event.call != self._call:
                return
            self._take(event)
            self._changed.notify_all()

    def needs_supervisor(self) -> bool:
        """Whether somebody has to decide before this rank is through."""
        with self._changed:
            is_over = self._left is not None or self._refusal is not None or self._is_closed or self._is_over
            return not is_over and not self._now().is_committed

    # --- under the lock ---

    def _take(self, event: CallEvent) -> None:
        match event:
            case Entered() | CallUnderway() | CallRefused():
                self._take_entry(event)
            case IterationDecided(_, iteration):
                if iteration > self._assigning:
                    self._decided = event
            case Exchanged(_, iteration, name, values):
                if iteration >= self._position.iteration:
                    self._exchanged[iteration, name] = values
            case Interrupted(_, iteration):
                if (known := self._known(iteration)) is not None:
                    known.is_interrupted = True
                    self._say(call_frames.faults_reported(self._call, iteration))
            case RestartOrdered(_, iteration, faults):
                if (known := self._known(iteration)) is not None:
                    known.faults = faults
            case CallCompleted(_, iteration):
                if (known := self._known(iteration)) is not None:
                    known.is_completed = True
            case Committed(_, iteration):
                self._is_over = self._entered is None
                if (known := self._known(iteration)) is not None:
                    known.is_committed = True

    def _take_entry(self, event: Entered | CallUnderway | CallRefused) -> None:
        match event:
            case Entered():
                self._entered = event
            case CallUnderway():
                self._is_late = True
            case CallRefused(_, reason):
                self._refusal = reason

    def _known(self, iteration: int) -> _Iteration | None:
        """None for one that is over. One to come may be spoken of before the main thread has begun it."""
        return self._iterations.setdefault(iteration, _Iteration()) if iteration >= self._position.iteration else None

    def _is_entered(self) -> bool:
        """Or has nothing to enter any more."""
        return self._entered is not None or self._is_over

    def _now(self) -> _Iteration:
        return self._iterations.setdefault(self._position.iteration, _Iteration())

    def _stand(self, stage: Stage) -> None:
        self._position = self._position._replace(stage=stage)

    def _wait(self, is_over: Callable[[], bool], timeout: timedelta | None = None) -> bool:
        """Blocks until `is_over()`; whether it is. Raises InternalError."""
        timeout_s = None if timeout is None else min(timeout.total_seconds(), threading.TIMEOUT_MAX)
        self._changed.wait_for(lambda: self._refusal is not None or is_over(), timeout_s)
        if is_over():
            return True
        if self._refusal is not None:
            raise InternalError(self._refusal)
        return False

    def _standing(self) -> Collection[bytes]:
        """All that a supervisor has to know which remembers nothing; what it does know changes nothing."""
        if self._left is not None:
            return [self._left]
        frames = [self._enter_frame(), *self._unanswered.values()]
        position = self._position
        if self._began is None or position.stage is Stage.ENTERING:
            return frames
        now = self._now()
        if position.stage is not Stage.RESTARTING:
            frames.append(self._began)
            if now.fault is not None:
                frames.append(self._fault_frame(now.fault))
            if now.is_interrupted:
                frames.append(call_frames.faults_reported(self._call, position.iteration))
        if position.stage is Stage.COMPLETING:
            frames.append(call_frames.arrive_at_completion(self._call, position))
        if position.stage is Stage.RESTARTING:
            frames.append(call_frames.arrive_at_iteration(self._call, position))
        return frames

    def _enter_frame(self) -> bytes:
        return call_frames.call_enter(
            self._call, self._initial_rank, self._initial_world_size, self._settings, self._position
        )

    def _fault_frame(self, fault: tuple[str, str]) -> bytes:
        position = self._position
        return call_frames.rank_fault(
            self._call, position.iteration, rank=position.rank, interruption=fault[0], reason=fault[1]
        )

    def _say(self, frame: bytes) -> None:
        if self._is_connected:
            self._say_now(frame)
