"""How does a restart reach the main thread, whatever that thread is doing?

A monitor thread waits for the coordinator's order. Once per fault, it waits until the main thread is in no atomic
block, aborts what it may be waiting for, and raises an exception in it until it has reached the Wrapper.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from worker_client import thread_signals
from worker_client.guarded_log import GuardedLog
from worker_client.inprocess.abort import clear_after, release_again
from worker_client.inprocess.attribution import Interruption, InterruptionRecord, describe
from worker_client.inprocess.coordinating.coordination import Coordination
from worker_client.inprocess.coordinating.guarded_condition import GuardedCondition
from worker_client.inprocess.interrupting.async_raise import async_raise as async_raise
from worker_client.inprocess.interrupting.async_raise import delayed_async_raise as delayed_async_raise
from worker_client.inprocess.interrupting.async_raise import reraise_if_unraisable as reraise_if_unraisable
from worker_client.inprocess.interrupting.main_thread_interrupter import MainThreadInterrupter
from worker_client.inprocess.interrupting.main_thread_interrupter import RankShouldRestart as RankShouldRestart
from worker_client.inprocess.watching.main_thread_watch import MainThreadWatch

if TYPE_CHECKING:
    from types import TracebackType

    from worker_client.call_protocol import FaultRecord
    from worker_client.inprocess.abort import Abort
    from worker_client.inprocess.state import FrozenState

FIRST_PAUSE_S = 0.005  # enough for a main thread that executes bytecode; a signal wakes others
PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 1.0
STOP_TIMEOUT_S = 1.0

log = GuardedLog("holdfast.inprocess")


class AtomicLock:
    """A re-entrant lock. While a thread holds it, the restart waits; during the restart, no thread gets it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._lock.release()

    def give_up(self) -> None:
        """Releases the lock for the calling thread, however often it holds it."""
        with suppress(RuntimeError):
            while True:
                self._lock.release()


class MonitorThread:
    """The monitor thread of one call, from `start()` to `stop()`."""

    def __init__(
        self,
        coordination: Coordination,
        interrupter: MainThreadInterrupter,
        watch: MainThreadWatch,
        atomic_lock: AtomicLock,
        abort: Abort | None,
        freeze: Callable[[], FrozenState],
    ) -> None:
        self._coordination = coordination
        self._interrupter = interrupter
        self._watch = watch
        self._atomic_lock = atomic_lock
        self._abort = abort
        self._freeze = freeze
        self._pid = os.getpid()
        self._changed = GuardedCondition()
        self._begun = -1  # the last iteration whose abort has begun
        self._aborted = -1  # the last iteration whose abort has finished completely
        self._reached = -1  # the last iteration that the main thread has left; sys.maxsize: it leaves the call
        rank = freeze().initial_rank
        self._thread = threading.Thread(target=self._run, name=f"holdfast-monitor-{rank}", daemon=True)

    # --- called by the main thread ---

    def start(self) -> None:
        global _current
        self._thread.start()
        _current = self

    def stop(self) -> bool:
        """Stops the thread and returns whether it has ended; a hanging abort keeps it alive. Idempotent."""
        global _current
        if _current is self:
            _current = None
        self._coordination.close()
        self._note_reached(sys.maxsize)
        if self._thread.ident is not None:
            self._thread.join(STOP_TIMEOUT_S)
        return not self._thread.is_alive()

    def note_reached(self, iteration: int) -> None:
        """Notes that the main thread has left the iteration: nothing more is raised in it."""
        self._note_reached(iteration)
        self._interrupter.disarm()

    def wait_aborted(self, iteration: int) -> None:
        """Blocks until the abort ordered for the iteration is over."""
        with self._changed:
            self._changed.wait_until(lambda: self._aborted >= iteration)

    def end_aborts(self) -> None:
        """Blocks until the abort that has begun, if any, is over. No other abort begins in this call."""
        with self._changed:
            self._reached = sys.maxsize
            self._changed.notify_all()
            self._changed.wait_until(lambda: self._aborted >= self._begun)

    def _note_reached(self, iteration: int) -> None:
        with self._changed:
            self._reached = iteration
            self._changed.notify_all()

    # --- called by any thread ---

    def abort_main_thread(self, reason: str) -> None:
        """Reports a fault of this rank: all ranks restart, and the function is interrupted as for any other fault."""
        if os.getpid() != self._pid or not self._coordination.interrupt(Interruption.EXCEPTION.name, reason):
            raise RuntimeError(_NOT_INSIDE)

    # --- the thread ---

    def _run(self) -> None:
        thread_signals.leave_to_the_script()
        last = -1
        while (order := self._coordination.next_restart(last)) is not None:
            last = order.iteration
            self._restart(order.iteration, message(order.faults))

    def _restart(self, iteration: int, text: str) -> None:
        with self._atomic_lock:
            with self._changed:
                if self._reached > iteration:
                    return  # The main thread is leaving the call: the process groups are the script's own again.
                self._begun = iteration
            state = self._freeze()
            log.info("rank %d: restart after iteration %d: %s", state.rank, iteration, text)
            self._watch.unwind()
            abort = self._abort
            try:
                if abort is not None:
                    _run_logged("abort", state, lambda: abort(state))
                with self._changed:
                    is_inside = self._reached < iteration
                    if is_inside:
                        self._interrupter.arm(text)
                if is_inside:
                    self._deliver(iteration, state)
                if abort is not None:
                    _run_logged("cleaning up after abort", state, lambda: clear_after(abort))
            finally:
                with self._changed:
                    self._aborted = iteration
                    self._changed.notify_all()

    def _deliver(self, iteration: int, state: FrozenState) -> None:
        """Raises in the main thread until it is out, again only if the last exception was swallowed."""
        self._interrupter.request()
        pause_s, raised, has_reached = FIRST_PAUSE_S, 0, False
        while not has_reached:
            has_reached = self._wait_reached(iteration, pause_s)
            for place in self._interrupter.places():  # of the last raise too, which only now is known to be enough
                raised += 1
                if raised > 1:
                    told = "the function has suppressed RankShouldRestart; raised again at"
                else:
                    told = "raised RankShouldRestart at"
                log.debug("rank %d: %s %s", state.rank, told, place)
            if not has_reached:
                self._release_again(iteration, state)
                self._interrupter.interrupt_system_call()
                pause_s = min(max(2 * pause_s, PAUSE_MIN_S), PAUSE_MAX_S)

    def _release_again(self, iteration: int, state: FrozenState) -> None:
        """Releases again, because one wait in C++ may follow another. Holds the lock: never once the thread is out."""
        abort = self._abort
        with self._changed:
            if abort is not None and self._reached < iteration:
                _run_logged("releasing again", state, lambda: release_again(abort, state))

    def _wait_reached(self, iteration: int, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._reached >= iteration, timeout_s)


_REFUSED = "the call is over for this rank"
_current: MonitorThread | None = None  # that of the call running in this process
_NOT_INSIDE = (
    "cannot abort the main thread: it is not inside a function that a Wrapper has called; "
    "call this from a thread of that function, or raise an exception in the thread with async_raise()"
)


def async_abort_main_thread(msg: str | None = None) -> None:
    """Interrupts the wrapped function and restarts it on all ranks. `msg` is the reported reason.

    May be called from any thread; returns at once. Raises RuntimeError if the main thread is not inside a wrapped
    function, or if a restart is already under way.
    """
    current = _current
    if current is None:
        raise RuntimeError(_NOT_INSIDE)
    current.abort_main_thread(msg or "async_abort_main_thread() was called")


def _run_logged(what: str, state: FrozenState, run: Callable[[], object]) -> None:
    """Runs a step of the restart, and only logs an exception: the main thread waits for all later steps."""
    try:
        run()
    except BaseException:  # whatever it is, the main thread is waiting for this to end
        log.exception("rank %d: %s has failed; the restart goes on", state.rank, what)


def message(faults: tuple[FaultRecord, ...]) -> str:
    """Returns a text like "Interruption.EXCEPTION affecting ranks {1}"; without faults, the call was refused."""
    return (
        _REFUSED
        if not faults
        else describe(InterruptionRecord(fault.rank, Interruption[fault.interruption]) for fault in faults)
    )
