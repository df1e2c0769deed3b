"""What happens, in which order, in one call of a wrapped function on one rank?

Everything happens on the main thread, except `abort` and raising the exception that interrupts the function
(monitor_thread.py). The coordinator decides (coordination.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import timedelta
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from worker_client import fencing_tokens
from worker_client.call_protocol import Entered, Leaving
from worker_client.guarded_log import GuardedLog
from worker_client.inprocess.attribution import Interruption
from worker_client.inprocess.call import call_number
from worker_client.inprocess.call.call_resources import CallResources
from worker_client.inprocess.call.call_stores import CallStores, open_store
from worker_client.inprocess.call.callbacks import Callbacks, is_unfit
from worker_client.inprocess.call.failed_iteration import CycleCollection, forget, in_a_line, traceback_text
from worker_client.inprocess.call.iteration_ranks import IterationRanks, Membership
from worker_client.inprocess.call.param_injection import inject
from worker_client.inprocess.call.rank_variables import RankVariables
from worker_client.inprocess.call.wrapper_parameters import WrapperParameters
from worker_client.inprocess.compose import fresh
from worker_client.inprocess.coordinating.connection import Connection, Receiver
from worker_client.inprocess.coordinating.coordination import Coordination, Plan, Superseded
from worker_client.inprocess.exception import InternalError, RestartAbort
from worker_client.inprocess.interrupting.main_thread_interrupter import (
    MainThreadInterrupter,
    RankShouldRestart,
    is_restart,
)
from worker_client.inprocess.monitor_thread import AtomicLock, MonitorThread
from worker_client.inprocess.progress_watchdog import ProgressWatchdog
from worker_client.inprocess.rank_assignment import RankDiscarded
from worker_client.inprocess.state import Mode, State
from worker_client.inprocess.store import BarrierTimeout, KeyStore, PrefixStore
from worker_client.inprocess.watching.main_thread_watch import MainThreadWatch
from worker_client.inprocess.watching.monitor_files import MonitorFiles

if TYPE_CHECKING:
    from types import TracebackType

_T = TypeVar("_T")

log = GuardedLog("holdfast.inprocess")


class CallWrapper:
    """One call of a wrapped function, which gets this object as the argument annotated with this class."""

    def __init__(self, wrapper: WrapperParameters) -> None:
        """Blocks until all ranks have come, at most `barrier_timeout`.

        Raises ValueError if torch.distributed is initialised or this is not the main thread, BarrierTimeout if ranks
        are missing, InternalError if no supervisor is available.
        """
        call_number.check_may_begin()
        self.wrapper = wrapper
        self.state = State.from_env()
        self.atomic_lock = AtomicLock()
        self._pid = os.getpid()
        self._raised: Exception | None = None  # by the function, in this iteration
        self._callbacks = Callbacks.of(wrapper)
        self._reference_cycles = CycleCollection()
        self._taken = CallResources()
        try:
            self._take(wrapper.soft_timeout.total_seconds())
            self._entered = self._enter()
        except BaseException:  # whatever it was: releases what was taken, then raises it again
            self._taken.release()
            raise

    def _enter(self) -> Entered | None:
        """Enters the call. A rank that gives up reports it, because the call cannot begin without it."""
        try:
            return self._coordination.enter(self.wrapper.barrier_timeout)
        except BaseException as error:
            self._coordination.leave(Leaving.FAULT, in_a_line(error))
            raise

    def _take(self, soft_timeout_s: float) -> None:
        """Takes all that the call needs from the process, and notes each item at once."""
        wrapper, state, taken = self.wrapper, self.state, self._taken
        self._variables = RankVariables()
        taken.note("environment variables", self._variables.restore)
        self._connection = Connection(
            os.environ, lambda: open_store(wrapper), rank=state.rank, soft_timeout_s=soft_timeout_s
        )
        self._receiver: Receiver | None = None
        taken.note("connection to the supervisor", self._close_connection)
        self._call = call_number.begin()
        taken.note("the process's one call", call_number.end)
        self._stores = CallStores(wrapper, self._call, self._variables.as_launched, start=self._connection.start)
        taken.note("stores of the function", self._stores.forget)
        self._watch = MainThreadWatch(self._connection.watch_changed)
        self.progress_watchdog = ProgressWatchdog(
            self._watch, wrapper.progress_watchdog_interval.total_seconds(), soft_timeout_s
        )
        taken.note("watchdog thread", self.progress_watchdog.stop)
        self._coordination = Coordination(self._call, state, wrapper.settings(), self._connection.say)
        self._ranks = IterationRanks(state, wrapper.rank_assignment, self._coordination, self._watch)
        self._interrupter = MainThreadInterrupter(soft_timeout_s)
        self._monitor_thread = MonitorThread(
            self._coordination, self._interrupter, self._watch, self.atomic_lock, fresh(wrapper.abort), state.freeze
        )
        taken.note("monitor thread, signal and hook", self._end_monitor_thread)
        self._monitor_thread.start()
        self.progress_watchdog.start()
        files = MonitorFiles(
            wrapper.monitor_process_logfile, wrapper.monitor_process_pidfile, initial_rank=state.initial_rank
        )
        files.open()
        taken.note("monitor's log file", files.close)
        self._receiver = Receiver(self._connection, self._coordination, self._watch, files.supervised_by)

    # --- for the wrapped function ---

    @property
    def iteration(self) -> int:
        """How many times the function was called before, in this call."""
        return self.state.iteration

    def ping(self) -> None:
        """Reports progress. From the first call in an iteration on, `soft_timeout` limits the silence between calls."""
        self._watch.words[10] = monotonic_ns()  # page.WORD_PING_NS, by its number: this is the hot path

    @contextlib.contextmanager
    def atomic(self) -> Generator[None]:
        """Keeps a restart from beginning inside the block; during a restart, no thread enters it. Re-entrant."""
        with self.atomic_lock:
            yield

    @contextlib.contextmanager
    def disable_hang_protection(self) -> Generator[None]:
        """Suspends the soft and hard timeouts inside the block. An exception still restarts. May be nested."""
        self._disable_hang_protection()
        try:
            yield
        finally:
            self._enable_hang_protection()

    @property
    def base_store(self) -> KeyStore:
        """The store `store_factory(**store_kwargs)`, opened on first use and the same in all iterations."""
        return self._stores.base()

    @property
    def store(self) -> PrefixStore:
        """This iteration's part of `base_store`."""
        return self._stores.of_iteration(self.state.iteration)

    @property
    def monitor_process(self) -> NoReturn:
        """Raises AttributeError: there is none."""
        raise AttributeError(
            "cannot give a monitor_process: the supervisor watches the rank; read its pid from the file that the "
            "Wrapper's monitor_process_pidfile names"
        )

    def _disable_hang_protection(self) -> None:
        self._watch.disable()

    def _enable_hang_protection(self) -> None:
        self._watch.enable()

    # --- for the Wrapper ---

    def __enter__(self) -> CallWrapper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Releases everything that was taken. Idempotent. A forked child owns nothing, so nothing is released there."""
        if os.getpid() == self._pid:
            self._coordination.leave(Leaving.FAULT, "the Wrapper was shut down before the call had ended")
            self._taken.release()

    def __call__(self, fn: Callable[..., _T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> _T | None:
        """Calls `fn` until all ranks have completed it. Raises what ends this rank."""
        given_args, given_kwargs = inject(fn, args, kwargs, self)
        if self._entered is None:  # The call succeeded without this rank, which came late and waited.
            self.state.mode = Mode.INACTIVE
            self._complete()
            return None
        try:
            self._begin(self._entered)
            while True:
                is_done, result = self._iterate(fn, given_args, given_kwargs)
                if is_done:
                    break
                self._restart()
        except BaseException as error:
            if os.getpid() == self._pid:
                self._leave(error)
            raise
        self._complete()
        return result

    # --- one iteration ---

    def _iterate(self, fn: Callable[..., _T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bool, _T | None]:
        """Runs one iteration up to its commit: True and what `fn` returned. False: the iteration restarts."""
        cause: Exception | None = None
        try:
            result = self._interrupter.run(self._run, fn, args, kwargs)
            if self._wait_for_all():
                return True, result
        except RankShouldRestart as error:
            forget(error)
            if os.getpid() != self._pid:
                raise
        except Exception as error:  # whatever it is, the next iteration may succeed
            if os.getpid() != self._pid:
                raise
            cause = error
        except BaseExceptionGroup as group:  # of a task group, as asyncio has them
            if os.getpid() != self._pid or not is_restart(group):
                raise
            forget(group)
        self._unwind(cause)
        return False, None

    def _run(self, fn: Callable[..., _T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> _T | None:
        """Runs the part of the iteration that a restart may interrupt."""
        self._callbacks.before_function(self.state.freeze())
        if self.state.mode is not Mode.ACTIVE:
            return None
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            self._raised = error
            raise

    def _wait_for_all(self) -> bool:
        """Blocks until all ranks have completed the iteration (True) or the restart is ordered (False)."""
        self._watch.off()
        if self.state.mode is not Mode.ACTIVE and not self._coordination.wait_for_completion():
            return False
        timeout = self.wrapper.completion_timeout
        return self._coordination.complete(timeout if timeout else None)  # 0: as long as it takes

    def _unwind(self, cause: Exception | None) -> None:
        """Reports how the main thread left the function, and blocks until the abort is over."""
        iteration = self.state.iteration
        raised, self._raised = self._raised, None
        self._watch.off()
        self.atomic_lock.give_up()
        self._connection.close_sections()
        self._monitor_thread.note_reached(iteration)
        if cause is not None:
            is_first = self._coordination.fail(Interruption.EXCEPTION.name, in_a_line(cause))  # Others wait for this.
            told = traceback_text(cause)
            forget(cause)
            log.error("rank %d: iteration %d has failed:\n%s", self.state.rank, iteration, told)
            if not is_first:
                raised = None  # The restart, ordered earlier, made the function raise this.
        elif not self._coordination.is_interrupted():
            self._coordination.fail(Interruption.EXCEPTION.name, "the function itself raised RankShouldRestart")
        longest = timedelta.max - self.wrapper.last_call_wait  # more would overflow
        timeout = self.wrapper.last_call_wait + min(self.wrapper.barrier_timeout, longest)
        try:
            if not self._coordination.wait_for_order(timeout):
                raise BarrierTimeout(
                    f"cannot restart after iteration {iteration}: the supervisor has not answered within {timeout}; "
                    "see its log, or give a longer barrier_timeout"
                )
        except BaseException:  # whatever it is, an abort that goes on would destroy the script's next process group
            self._watch.unwind()
            self._monitor_thread.end_aborts()
            raise
        if self._coordination.has_lost_peers():
            raised = None  # A collective with a rank that has died raised this.
        self._watch.unwind()  # The monitor thread may not get that far: another thread can stay in an atomic block.
        self._monitor_thread.wait_aborted(iteration)
        self._watch.on()
        self.state.fn_exception = raised

    # --- between two iterations ---

    def _restart(self) -> None:
        self._callbacks.after_fault(self.state.freeze())
        self._watch.off()
        with self._variables.serving_others():
            decision = self._coordination.arrive(self.wrapper.barrier_timeout)
        self._watch.on()
        self._begin(decision)
        self._reference_cycles.collect()

    def _begin(self, plan: Plan) -> None:
        """Assigns ranks and begins the iteration, by another decision if a new coordinator makes one meanwhile."""
        while True:
            try:
                self._ranks.assign(plan)
                self._enter_iteration()
                self._watch.on()  # Before a restart of the iteration can come: it would take back that one's unwinding.
                self._coordination.begin(self.state)
                return
            except Superseded as newer:
                plan = newer.plan
                self._ranks.take_back()

    def _enter_iteration(self) -> None:
        """Sets the function's environment for the iteration."""

        def exchange(name: str, value: str) -> dict[int, str]:
            return self._ranks.exchange(name, value, self.wrapper.barrier_timeout)

        self._variables.enter(self.state, self._call, exchange)
        fencing_tokens.begin_iteration(self._call, self.state.iteration)

    # --- ends ---

    def _complete(self) -> None:
        try:
            self._callbacks.after_commit(self.state.freeze())
        finally:
            self._coordination.leave(Leaving.DONE, "")

    def _leave(self, error: BaseException) -> None:
        """Ends this rank. Blocks until the others continue without it or a new process may take its place."""
        membership = self._ranks.membership
        is_expected = isinstance(error, RankDiscarded) or membership is Membership.DESERTED  # All ranks know of it.
        self.atomic_lock.give_up()
        why = Leaving.DISCARDED if is_expected else Leaving.FAULT
        self._coordination.leave(why, in_a_line(error), is_unfit=not is_expected and is_unfit(error))
        self._monitor_thread.note_reached(sys.maxsize)
        self._watch.end()
        log.info("rank %d leaves the wrapped function: %s", self.state.rank, in_a_line(error))
        if not is_expected:
            with contextlib.suppress(InternalError, RestartAbort), self._variables.serving_others():
                self._coordination.wait_for_others(self.wrapper.barrier_timeout)
        if membership is not Membership.JOINING:
            self._callbacks.before_end(self.state.freeze())

    def _close_connection(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
        self._connection.close()

    def _end_monitor_thread(self) -> None:
        if self._monitor_thread.stop():
            self._interrupter.remove()
        else:
            log.warning("rank %d: the thread that aborts hangs; its signal stays in use", self.state.rank)
