"""A wrapped function in the situations of the in-process guide; the first argument is the case. Needs no torch."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from worker_client import inprocess
from worker_client.inprocess import CallWrapper, Compose, FrozenState, rank_assignment

CASE = sys.argv[1]
FOR_EVER_S = 600.0
INITIAL = int(os.environ["RANK"])
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper
QUICK: dict[str, Any] = {
    f"{name}_interval": timedelta(seconds=0.1)
    for name in ("monitor_thread", "monitor_process", "heartbeat", "progress_watchdog")
}


def note(what: str, **more: object) -> None:
    names = {"rank": INITIAL, "pid": os.getpid(), "at": time.monotonic(), "thread": threading.current_thread().name}
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{json.dumps({'what': what, **names, **more})}\n".encode())
    os.close(descriptor)


def has_happened(what: str, times: int = 1) -> bool:
    with open(os.environ["TRACE"]) as trace:
        return trace.read().count(f'"what": "{what}"') >= times


def until(what: str, times: int = 1) -> None:
    while not has_happened(what, times):
        time.sleep(0.005)


def ranks_in(iteration: int) -> set[int]:
    """Returns the ranks that have entered the function in that iteration."""
    with open(os.environ["TRACE"]) as trace:
        lines = [json.loads(line) for line in trace if line.endswith("}\n")]
    return {line["rank"] for line in lines if line["what"] == "fn" and line["iteration"] == iteration}


class Noted:
    """A callback of any family that notes when it ran, and may fail."""

    def __init__(self, fail: Callable[[FrozenState], object] = lambda state: None) -> None:
        self.fail = fail

    def __call__(self, state: FrozenState) -> FrozenState:
        note(type(self).__name__, iteration=state.iteration)
        self.fail(state)
        return state


class Initialize(Noted, inprocess.initialize.Initialize): ...


class Abort(Noted, inprocess.abort.Abort): ...


class Finalize(Noted, inprocess.finalize.Finalize): ...


class HealthCheck(Noted, inprocess.health_check.HealthCheck): ...


class Completion(Noted, inprocess.completion.Completion): ...


def wrapper(**given: Any) -> inprocess.Wrapper:  # noqa: ANN401
    noted: dict[str, Any] = {"initialize": Initialize(), "abort": Abort(), "finalize": Finalize()}
    noted |= {"health_check": HealthCheck(), "completion": Completion()}
    return inprocess.Wrapper(**(noted | given))


def entered(call: CallWrapper, **more: object) -> None:
    names = {name: os.environ.get(name) for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")}
    note("fn", iteration=call.iteration, as_rank=os.environ["RANK"], **names, **more)


def broken(state: FrozenState) -> None:
    raise ArithmeticError("broken")


def after_the_fault_on(rank: int) -> Callable[[FrozenState], object]:
    return lambda state: broken(state) if rank == INITIAL and has_happened("fault") else None


# --- cases -----------------------------------------------------------------------------------------------------------


def case_fault() -> None:
    """Rank 1 raises; rank 0 is in a block that cleans up, rank 2 in an atomic block, and suppresses what follows."""
    logging.basicConfig(level=logging.DEBUG)

    @wrapper(monitor_process_logfile=f"{os.getcwd()}/monitor-{{rank}}.log")
    def train(given: list[str], *, call: CallWrapper = INJECTED) -> str:
        entered(call, given=list(given), kind=type(call).__name__)
        given.append("changed")
        if call.iteration > 0:
            return f"result of {INITIAL}"
        until("fn", 3)
        if INITIAL == 1:
            until("in the block")
            note("fault")
            raise ValueError("by intention")
        if INITIAL == 0:
            with contextlib.ExitStack() as stack:
                stack.callback(note, "cleaned up")
                try:
                    time.sleep(FOR_EVER_S)
                except BaseException as error:
                    note("interrupted", kind=[each.__name__ for each in type(error).__mro__])
                    raise
        with contextlib.suppress(BaseException):
            with call.atomic():
                note("in the block")
                until("fault")
                time.sleep(0.3)
                note("left the block")
            time.sleep(FOR_EVER_S)
        time.sleep(FOR_EVER_S)
        return ""

    note("returned", value=train(["first"]))


def case_silent() -> None:
    """A rank blocks; then one stops to ping; then one ignores SIGTERM and is stopped. Others spin without a ping."""

    @wrapper(
        soft_timeout=timedelta(seconds=1), hard_timeout=timedelta(seconds=1.6), barrier_timeout=timedelta(seconds=20),
        heartbeat_timeout=timedelta(seconds=1), termination_grace_time=timedelta(seconds=0.2), **QUICK,
    )  # fmt: skip
    def train(call: CallWrapper = INJECTED) -> int:
        entered(call)
        silent = INITIAL == 1 and call.iteration < 3
        if silent:
            note("silent", iteration=call.iteration)
        if silent and call.iteration == 0:
            time.sleep(FOR_EVER_S)
        if silent and call.iteration == 1:
            call.ping()
        if silent and call.iteration == 2:
            # In C: the restart, which the rank hears as it continues, could raise in a Python handler before it notes.
            faulthandler.register(signal.SIGTERM, file=open("sigterm", "w"), all_threads=False)  # noqa: SIM115
            os.kill(os.getpid(), signal.SIGSTOP)
        end_s = time.monotonic() + (FOR_EVER_S if call.iteration < 3 else 1.3)
        while time.monotonic() < end_s:
            time.sleep(0.001)
        return call.iteration

    note("returned", value=train())


def case_unfit() -> None:
    """Rank 0 raises; then the health check refuses rank 1, and rank 2 cannot finalize."""

    @wrapper(health_check=HealthCheck(after_the_fault_on(1)), finalize=Finalize(after_the_fault_on(2)))
    def train(call: CallWrapper = INJECTED) -> int:
        entered(call)
        if call.iteration == 0:
            until("fn", 4)
            if INITIAL == 0:
                note("fault")
                raise ValueError("by intention")
            time.sleep(FOR_EVER_S)
        return INITIAL

    try:
        note("returned", value=train())
    except (ArithmeticError, inprocess.exception.HealthCheckError) as error:
        note("raised", kind=type(error).__name__, cause=repr(error.__cause__))


def case_retry() -> None:
    """Initialize fails once, then the function, until no attempt is left."""

    def fail(state: FrozenState) -> None:
        if INITIAL == 0 and state.iteration == 0:
            broken(state)

    controller = inprocess.initialize.RetryController(max_iterations=2)

    @wrapper(initialize=Compose(controller, Initialize(fail)))
    def train(call: CallWrapper = INJECTED) -> None:
        entered(call)
        while call.iteration and len(ranks_in(call.iteration)) < 2:  # rank 1 enters iteration 0 alone
            time.sleep(0.005)
        raise ValueError("by intention")

    try:
        train()
    except inprocess.exception.RestartAbort as error:
        note("aborted", message=str(error))


def case_completion() -> None:
    """Rank 0 has returned; rank 1 has not within the completion timeout."""

    @wrapper(completion_timeout=timedelta(seconds=0.3))
    def train(call: CallWrapper = INJECTED) -> int:
        entered(call)
        if call.iteration == 0 and INITIAL == 1:
            time.sleep(FOR_EVER_S)
        return call.iteration

    note("returned", value=train())


def case_reserve() -> None:
    """Rank 0 is killed; the one in reserve takes its place."""

    @wrapper(rank_assignment=Compose(rank_assignment.MaxActiveWorldSize(2), rank_assignment.ShiftRanks()))
    def train(call: CallWrapper = INJECTED) -> int:
        entered(call)
        if call.iteration == 0:
            until("fn", 2)
            if INITIAL == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(FOR_EVER_S)
        return call.iteration

    note("returned", value=train())


def case_missing() -> None:
    """Rank 1 never enters."""

    @wrapper(
        soft_timeout=timedelta(seconds=0.3), hard_timeout=timedelta(seconds=0.4), barrier_timeout=timedelta(seconds=1),
        heartbeat_timeout=timedelta(seconds=0.5), **QUICK,
    )  # fmt: skip
    def train(call: CallWrapper = INJECTED) -> None:
        entered(call)

    note("here")
    if INITIAL == 1:
        until("barrier timeout")
        return
    try:
        train()
    except inprocess.store.BarrierTimeout:
        note("barrier timeout")


if __name__ == "__main__":
    globals()[f"case_{CASE}"]()
