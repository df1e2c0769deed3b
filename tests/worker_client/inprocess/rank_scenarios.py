"""What do ranks do? `python -m tests.worker_client.inprocess.rank_scenarios NAME` is one rank of the scenario NAME."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import time
import weakref
from datetime import timedelta

from tests.worker_client.inprocess.scenario import (
    FOR_EVER_S,
    INJECTED,
    ITERATIONS,
    RANK,
    SCENARIOS,
    WORLD_SIZE,
    NotedFinalize,
    NotedHealthCheck,
    NotedInitialize,
    environment,
    note,
    noting,
    scenario,
    touched,
)
from worker_client import inprocess
from worker_client.inprocess import CallWrapper, Compose, FrozenState, rank_assignment

# --- ends well -----------------------------------------------------------------------------------------------------


@scenario
def succeeds_twice() -> None:
    os.environ.pop("LOCAL_RANK", None)

    @noting()
    def train(argument: int, *, call: CallWrapper | None = None) -> int:
        assert isinstance(call, CallWrapper)
        call.ping()
        note("fn", iteration=call.iteration, environment=environment(), argument=argument)
        return argument + RANK

    before = touched()
    for argument in (10, 20):
        note("returned", value=train(argument))
        after = touched()
        assert after == before, [(name, before[name], after[name]) for name in before if before[name] != after[name]]
        assert touched() == before, (touched(), before)


@scenario
def inactive_ranks() -> None:
    wrapper = noting(
        rank_assignment=Compose(rank_assignment.MaxActiveWorldSize(1), rank_assignment.ShiftRanks()),
    )

    @wrapper
    def train() -> str:
        note("fn", environment=environment())
        time.sleep(0.05)
        return "done"

    note("returned", value=train())


# --- restarts ------------------------------------------------------------------------------------------------------


@scenario
def exception_on_rank_1() -> None:
    """The others are in all kinds of places where a thread can be."""
    lock = threading.Lock()
    lock.acquire()
    read, _ = os.pipe()

    @noting()
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration, environment=environment())
        if call.iteration == 0:
            if RANK == 1:
                time.sleep(0.2)
                note("raise")
                raise ValueError("by intention")
            try:
                _stay(RANK)
            except BaseException as error:
                note("interrupted", kind=type(error).__name__, message=str(error))
                raise
        return RANK

    def _stay(rank: int) -> None:
        if rank == 0:
            while True:
                pass
        elif rank == 2:
            time.sleep(FOR_EVER_S)
        elif rank == 3:
            lock.acquire()
        else:
            os.read(read, 1)

    note("returned", value=train())


@scenario
def restarts_quickly() -> None:
    """Measures the time from an exception to the next entry, with defaults."""

    @inprocess.Wrapper()
    def train(call: CallWrapper = INJECTED) -> None:
        note("fn", iteration=call.iteration)
        if call.iteration < 5:
            if RANK == 1:
                time.sleep(0.05)
                note("raise", iteration=call.iteration)
                raise ValueError("by intention")
            while True:
                time.sleep(0.001)

    train()


@scenario
def exits_on_rank_1() -> None:
    @noting()
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration, environment=environment())
        if call.iteration == 0:
            if RANK == 1:
                sys.exit(7)
            time.sleep(FOR_EVER_S)
        return RANK

    try:
        note("returned", value=train())
    except SystemExit as error:
        note("exit", code=error.code)


@scenario
def killed_rank_0() -> None:
    @noting()
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration, environment=environment())
        if call.iteration == 0:
            if RANK == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(FOR_EVER_S)
        return RANK

    note("returned", value=train())


@scenario
def unhealthy_rank_1() -> None:
    def fail(state: FrozenState) -> None:
        if state.rank == 1 and state.fn_exception is not None:
            raise ArithmeticError("broken")

    @noting(health_check=NotedHealthCheck("health_check", fail))
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if call.iteration == 0:
            if RANK == 1:
                raise ValueError("by intention")
            time.sleep(FOR_EVER_S)
        return RANK

    try:
        note("returned", value=train())
    except inprocess.exception.HealthCheckError as error:
        note("raised", cause=type(error.__cause__).__name__)


@scenario
def finalize_fails_on_rank_1() -> None:
    def fail(state: FrozenState) -> None:
        if state.rank == 1 and state.world_size == 2:
            raise ArithmeticError("broken")

    @noting(finalize=NotedFinalize("finalize", fail))
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if call.iteration == 0:
            if RANK == 1:
                raise ValueError("by intention")
            time.sleep(FOR_EVER_S)
        return RANK

    try:
        note("returned", value=train())
    except ArithmeticError as error:
        note("raised", message=str(error))


@scenario
def initialize_fails_once_on_rank_1() -> None:
    def fail(state: FrozenState) -> None:
        if state.rank == 1 and state.iteration == 0:
            raise ValueError("by intention")

    @noting(initialize=NotedInitialize("initialize", fail))
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if call.iteration == 0:
            time.sleep(FOR_EVER_S)
        return RANK

    note("returned", value=train())


@scenario
def returned_already() -> None:
    """Rank 0 has returned when rank 1 fails. No wait for the others has a limit."""

    @noting(barrier_timeout=timedelta.max)
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if call.iteration == 0 and RANK == 1:
            time.sleep(0.3)
            raise ValueError("by intention")
        return call.iteration

    note("returned", value=train())


@scenario
def completion_times_out() -> None:
    @noting(completion_timeout=timedelta(seconds=0.3), health_check=inprocess.health_check.FaultCounter(0))
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if call.iteration == 0 and RANK == 1:
            time.sleep(FOR_EVER_S)
        return call.iteration

    note("returned", value=train())


@scenario
def aborted_everywhere() -> None:
    controller = inprocess.initialize.RetryController(max_iterations=2)

    @noting(initialize=controller)
    def train(call: CallWrapper = INJECTED) -> None:
        note("fn", iteration=call.iteration)
        if RANK == 0:
            raise ValueError("by intention")
        time.sleep(FOR_EVER_S)

    try:
        train()
    except inprocess.exception.RestartAbort as error:
        note("aborted", message=str(error))


@scenario
def nobody_active() -> None:
    composed = Compose(rank_assignment.ActiveWorldSizeDivisibleBy(2), rank_assignment.ShiftRanks())

    @noting(rank_assignment=composed)
    def train(call: CallWrapper = INJECTED) -> None:
        note("fn", iteration=call.iteration)
        if RANK == 1:
            sys.exit(0)
        time.sleep(FOR_EVER_S)

    try:
        train()
    except inprocess.exception.RestartAbort as error:
        note("aborted", message=str(error))


@scenario
def discarded_with_its_group() -> None:
    """Groups of two; what is left of rank 3's group goes with it."""
    composed = Compose(
        rank_assignment.ActivateAllRanks(),
        rank_assignment.ShiftRanks(),
        rank_assignment.FilterCountGroupedByKey(lambda state: state.rank // 2, lambda count: count == 2),
    )

    @noting(rank_assignment=composed)
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration, environment=environment())
        if call.iteration == 0:
            if RANK == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(FOR_EVER_S)
        return RANK

    try:
        note("returned", value=train())
    except rank_assignment.RankDiscarded:
        note("discarded")


@scenario
def leaves_nothing_behind() -> None:
    """Objects of the failed iteration are dead when the next one begins, without a full collection."""
    remembered: list[weakref.ref[object]] = []

    class Model:
        def __init__(self) -> None:
            self.myself = self  # a cycle

    def fail(model: Model) -> None:
        kept = model
        try:
            raise KeyError(kept)
        except KeyError as error:
            held = error  # a cycle of traceback, frame and exception
            raise ValueError("by intention") from held

    @inprocess.Wrapper()
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration, alive=[ref() is not None for ref in remembered])
        if call.iteration < 2:
            model, other = Model(), Model()
            remembered.append(weakref.ref(model))
            remembered.append(weakref.ref(other))
            if RANK == 1:
                time.sleep(0.05)
                fail(model)
            time.sleep(FOR_EVER_S)
        return RANK

    gc.collect()
    note("returned", value=train())


@scenario
def raises_it_itself() -> None:
    from worker_client.inprocess.monitor_thread import RankShouldRestart

    @noting()
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if call.iteration == 0:
            if RANK == 1:
                raise RankShouldRestart("mine")
            time.sleep(FOR_EVER_S)
        return RANK

    note("returned", value=train())


@scenario
def restarts_many_times() -> None:
    """Exceptions at random moments on all ranks."""
    import random

    dice = random.Random(RANK)

    @inprocess.Wrapper(completion_timeout=timedelta(seconds=20))
    def train(call: CallWrapper = INJECTED) -> int:
        if call.iteration >= ITERATIONS:
            return call.iteration
        end_s = time.monotonic() + dice.uniform(0, 0.02)
        while time.monotonic() < end_s:
            call.ping()
            with call.atomic():
                pass
        if dice.random() < 0.3 or call.iteration % WORLD_SIZE == RANK:
            raise ValueError("by intention")
        return call.iteration

    threads = threading.active_count()
    note("returned", value=train())
    assert threading.active_count() == threads


@scenario
def idles() -> None:
    @inprocess.Wrapper()
    def train(call: CallWrapper = INJECTED) -> None:
        before_s = time.process_time()
        time.sleep(3)
        note("idle", cpu_s=time.process_time() - before_s)
        begin_ns = time.perf_counter_ns()
        for _ in range(100_000):
            call.ping()
        note("ping", each_ns=(time.perf_counter_ns() - begin_ns) / 100_000)

    began_s = time.monotonic()
    train()
    note("took", s=time.monotonic() - began_s)


if __name__ == "__main__":
    for name in ("interruption_scenarios", "fault_scenarios"):
        importlib.import_module(f"tests.worker_client.inprocess.{name}")  # registers its own
    SCENARIOS[sys.argv[1]]()
