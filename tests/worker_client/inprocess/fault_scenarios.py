"""What do ranks do when their callbacks fail, when they leave, and when they raise unusual errors?"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from tests.worker_client.inprocess.scenario import (
    FOR_EVER_S,
    INJECTED,
    RANK,
    WORLD_SIZE,
    NotedAbort,
    NotedCompletion,
    NotedFinalize,
    NotedHealthCheck,
    NotedInitialize,
    NotedTerminate,
    environment,
    note,
    noting,
    scenario,
    touched,
)
from worker_client import RankMonitorClient, commit, inprocess
from worker_client.inprocess import CallWrapper, Compose, FrozenState, rank_assignment

PATIENCE_S = 20.0
GONE = Path("gone")  # in the test's folder, where all ranks run


def _broken(_state: FrozenState) -> None:
    raise ArithmeticError("broken")


def _wait_for(path: Path) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < end_s, f"{path} did not come"
        time.sleep(0.005)


def _fails_once(call: CallWrapper, *ranks: int) -> int:
    """In iteration 0 these ranks fail, while the others wait."""
    note("fn", iteration=call.iteration, environment=environment())
    if call.iteration == 0:
        if RANK in ranks:
            for rank in set(range(WORLD_SIZE)) - set(ranks):
                _wait_for(Path(f"waits-{rank}"))
            raise ValueError("by intention")
        try:
            # The interruption is noted only from here on: a slow rank must not miss it.
            Path(f"waits-{RANK}").touch()
            time.sleep(FOR_EVER_S)
        except BaseException as error:
            note("interrupted", message=str(error))
            raise
    return call.iteration


# --- callbacks that fail, ranks that leave ---------------------------------------------------------------------------


@scenario
def completion_fails() -> None:
    @noting(completion=NotedCompletion("completion", _broken))
    def train() -> int:
        return RANK

    note("returned", value=train())


@scenario
def killed_in_completion() -> None:
    """The others' results are not lost."""

    def die(state: FrozenState) -> None:
        if state.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    @noting(completion=NotedCompletion("completion", die))
    def train() -> int:
        return RANK

    note("returned", value=train())


@scenario
def terminate_fails() -> None:
    @noting(terminate=NotedTerminate("terminate", _broken))
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if RANK == 1:
            sys.exit(7)
        if call.iteration == 0:
            time.sleep(FOR_EVER_S)
        return RANK

    try:
        note("returned", value=train())
    except ArithmeticError:
        note("raised")


@scenario
def abort_fails() -> None:
    """Raises something that is no Exception on rank 0."""

    def fail(state: FrozenState) -> None:
        raise SystemExit(3) if state.rank == 0 else ArithmeticError("broken")

    @noting(abort=NotedAbort("abort", fail))
    def train(call: CallWrapper = INJECTED) -> int:
        return _fails_once(call, 1)

    note("returned", value=train())


@scenario
def two_fail_together() -> None:
    @noting()
    def train(call: CallWrapper = INJECTED) -> int:
        return _fails_once(call, 1, 2)

    note("returned", value=train())


@scenario
def inactive_environment() -> None:
    wrapper = noting(
        initialize=NotedInitialize("initialize", lambda state: note("environment", environment=environment())),
        rank_assignment=Compose(rank_assignment.MaxActiveWorldSize(1), rank_assignment.ShiftRanks()),
    )

    @wrapper
    def train() -> int:
        return RANK

    note("returned", value=train())


@scenario
def client_in_reserve() -> None:
    """Each rank, also that in reserve, starts a client as it begins, and commits a file at the end."""

    def start(_: FrozenState) -> None:
        client = RankMonitorClient()
        client.init_workload_monitoring()
        client.send_heartbeat()
        assert client.rank_info is not None
        note("client", rank=client.rank_info.global_rank)

    def save(_: FrozenState) -> None:
        with commit(f"saved-{RANK}") as temporary:
            temporary.write_text("by intention")
        note("saved")

    os.environ["HOLDFAST_FENCING_EPOCH"] = "1"
    wrapper = noting(
        initialize=NotedInitialize("initialize", start),
        completion=NotedCompletion("completion", save),
        rank_assignment=Compose(rank_assignment.MaxActiveWorldSize(1), rank_assignment.ShiftRanks()),
    )

    @wrapper
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        return RANK

    note("returned", value=train())


# --- what is raised --------------------------------------------------------------------------------------------------


@scenario
def one_fault_too_many() -> None:
    @noting(health_check=inprocess.health_check.FaultCounter(max_rank_faults=1))
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if call.iteration < 2:
            if RANK == 1:
                raise ValueError("by intention")
            time.sleep(FOR_EVER_S)
        return call.iteration

    try:
        note("returned", value=train())
    except inprocess.exception.HealthCheckError as error:
        note("left", cause=type(error.__cause__).__name__)


class OddError(Exception):
    """Nothing can copy it, pickle it, or print its text."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__()
        self.held = one, two, threading.Lock()

    def __str__(self) -> str:
        raise RuntimeError("there is no text")

    def __reduce__(self) -> str:
        raise TypeError("not to be copied")

    __copy__ = __deepcopy__ = __reduce__  # pyright: ignore


def _deep(depth: int) -> None:
    if depth:
        _deep(depth - 1)
    raise ValueError("x" * 1_000_000)


def _chained(count: int) -> None:
    error: BaseException = ValueError("the first")
    for number in range(count):
        following = ValueError(number)
        following.__cause__ = error
        error = following
    raise error


def _grouped() -> None:
    raise ExceptionGroup("several", [OddError(1, 2), ExceptionGroup("inner", [ValueError("\udcff\0")])])


@scenario
def odd_exceptions() -> None:
    def odd() -> None:
        raise OddError(1, 2)

    logging.disable()  # the test reads one rank's pipe after another
    raises: list[Callable[[], object]] = [odd, lambda: _deep(900), lambda: _chained(400), _grouped]

    @noting()
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if call.iteration < len(raises):
            if RANK == 1:
                raises[call.iteration]()
            time.sleep(FOR_EVER_S)
        return call.iteration

    note("returned", value=train())


# --- where the restart finds the main thread -------------------------------------------------------------------------


def _stay() -> None:
    end_s = time.monotonic() + FOR_EVER_S
    while time.monotonic() < end_s:
        time.sleep(0.001)


class _Cyclic:
    def __del__(self) -> None:
        note("there", place="cycle")
        _stay()


class _Key:
    """Compared by C code, which propagates exceptions."""

    def __lt__(self, other: object) -> bool:
        note("there", place="comparison")
        _stay()
        return True


def _in_a_c_callback() -> None:
    """ctypes can't propagate an exception."""

    def compare(_one: object, _two: object) -> int:
        note("there", place="c callback")
        _stay()
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    numbers = (ctypes.c_int * 2)(2, 1)
    ctypes.CDLL(None).qsort(numbers, 2, ctypes.sizeof(ctypes.c_int), kind(compare))
    note("after", place="c callback")
    _stay()


def _in_a_weak_callback() -> None:
    def gone(_reference: object) -> None:
        note("there", place="weak callback")
        _stay()

    kept = _Key()
    reference = weakref.ref(kept, gone)
    del kept
    note("after", place="weak callback")
    assert reference() is None
    _stay()


def _in_the_garbage_collector() -> None:
    one = _Cyclic()
    one.self = one  # pyright: ignore
    del one
    gc.collect()
    note("after", place="cycle")
    _stay()


def _in_a_signal_handler() -> None:
    def handle(_number: int, _frame: object) -> None:
        note("there", place="signal handler")
        _stay()

    signal.signal(signal.SIGUSR1, handle)
    signal.raise_signal(signal.SIGUSR1)


def _in_a_generator_that_is_closed() -> None:
    def numbers() -> object:
        try:
            yield 1
        finally:
            note("there", place="generator")
            _stay()

    for _ in numbers():  # pyright: ignore
        break
    note("after", place="generator")
    _stay()


@scenario
def places() -> None:
    """Ranks 0 and 2 are in their own callbacks before the function, the others in places inside it."""
    inside: dict[int, Callable[[], object]] = {
        3: _in_a_c_callback, 4: _in_a_weak_callback, 5: _in_the_garbage_collector, 6: _in_a_signal_handler,
        7: lambda: sorted([_Key(), _Key()]), 8: _in_a_generator_that_is_closed,
    }  # fmt: skip

    def stay(rank: int, place: str) -> Callable[[FrozenState], None]:
        def run(state: FrozenState) -> None:
            if (state.rank, state.iteration, state.fn_exception) == (rank, 0, None) and not unwound:
                note("there", place=place)
                _stay()

        return run

    unwound: list[int] = []
    wrapper = noting(
        initialize=NotedInitialize("initialize", stay(0, "initialize")),
        health_check=NotedHealthCheck("health_check", stay(2, "health_check")),
        finalize=NotedFinalize("finalize", lambda state: unwound.append(state.iteration)),
    )

    @wrapper
    def train(call: CallWrapper = INJECTED) -> int:
        note("fn", iteration=call.iteration)
        if call.iteration == 0:
            if RANK == 1:
                _wait_for(GONE)  # the test has seen the others in their places
                raise ValueError("by intention")
            inside[RANK]()
        return call.iteration

    note("returned", value=train())


# --- a second call ---------------------------------------------------------------------------------------------------


@scenario
def leaves_as_it_came() -> None:
    """Two calls with a restart, then one of another wrapper that ends with an error."""

    @noting()
    def recovers(call: CallWrapper = INJECTED) -> int:
        return _fails_once(call, 1)

    @noting(initialize=inprocess.initialize.RetryController(max_iterations=1))
    def gives_up(call: CallWrapper = INJECTED) -> int:
        return _fails_once(call, 1)

    def compare() -> None:
        after = touched()
        changed = {name: (str(before[name]), str(after[name])) for name in before if before[name] != after[name]}
        note("compared", changed=changed)

    before = touched()
    for _ in range(2):
        note("returned", value=recovers())
        compare()
    try:
        gives_up()
    except inprocess.exception.RestartAbort:
        note("aborted")
    compare()


# --- ends ------------------------------------------------------------------------------------------------------------


@scenario
def world_too_small() -> None:
    @noting(initialize=inprocess.initialize.RetryController(min_world_size=3))
    def train(call: CallWrapper = INJECTED) -> None:
        note("fn", iteration=call.iteration)
        if RANK == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(FOR_EVER_S)

    try:
        train()
    except inprocess.exception.RestartAbort as error:
        note("aborted", message=str(error))


def _impatient() -> dict[str, timedelta]:
    """Returns a barrier timeout of a second, and all values that must be shorter."""
    named = {"soft_timeout": 0.3, "hard_timeout": 0.5, "heartbeat_timeout": 0.5, "barrier_timeout": 1.0}
    intervals = ("monitor_thread", "monitor_process", "heartbeat", "progress_watchdog")
    return {name: timedelta(seconds=value) for name, value in named.items()} | {
        f"{name}_interval": timedelta(seconds=0.1) for name in intervals
    }


@scenario
def late_at_the_iteration_barrier() -> None:
    """Rank 0 finalizes until rank 1's timeout is over."""

    def wait(state: FrozenState) -> None:
        if state.rank == 0:
            _wait_for(GONE)

    @noting(finalize=NotedFinalize("finalize", wait), **_impatient())
    def train(call: CallWrapper = INJECTED) -> int:
        return _fails_once(call, 1)

    try:
        note("returned", value=train())
    except inprocess.store.BarrierTimeout as error:
        note("timeout", message=str(error))
        GONE.touch()


@scenario
def never_enters() -> None:
    """Rank 1 does not call the function."""
    if RANK == 1:
        _wait_for(GONE)
        return

    @noting(**_impatient())
    def train() -> int:
        return RANK

    try:
        train()
    except inprocess.store.BarrierTimeout as error:
        note("timeout", message=str(error))
        GONE.touch()
