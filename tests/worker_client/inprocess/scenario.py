"""The parts of scenarios: a line for each event, callbacks that leave notes, and their places."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from worker_client import inprocess
from worker_client.inprocess import CallWrapper, FrozenState

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
FOR_EVER_S = 3600.0
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper
ITERATIONS = 100  # of the scenario that restarts many times


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "at": time.monotonic(), "thread": threading.current_thread().name, **more})
    os.write(1, f"{line}\n".encode())


class Noted:
    """A callback of any family that notes when and where it ran, and may fail."""

    def __init__(self, name: str, fail: Callable[[FrozenState], object] = lambda state: None) -> None:
        self.name = name
        self.fail = fail

    def __call__(self, state: FrozenState) -> FrozenState:
        failed = None if state.fn_exception is None else type(state.fn_exception).__name__
        note(self.name, iteration=state.iteration, rank=state.rank, failed=failed)
        self.fail(state)
        return state


class NotedInitialize(Noted, inprocess.initialize.Initialize): ...


class NotedAbort(Noted, inprocess.abort.Abort): ...


class NotedFinalize(Noted, inprocess.finalize.Finalize): ...


class NotedHealthCheck(Noted, inprocess.health_check.HealthCheck): ...


class NotedCompletion(Noted, inprocess.completion.Completion): ...


class NotedTerminate(Noted, inprocess.terminate.Terminate): ...


def noting(**given: Any) -> inprocess.Wrapper:  # noqa: ANN401
    """Returns a Wrapper all of whose callbacks leave notes."""
    callbacks: dict[str, Any] = {
        "initialize": NotedInitialize("initialize"),
        "abort": NotedAbort("abort"),
        "finalize": NotedFinalize("finalize"),
        "health_check": NotedHealthCheck("health_check"),
        "completion": NotedCompletion("completion"),
        "terminate": NotedTerminate("terminate"),
    }
    os.environ.pop("LOCAL_RANK", None)  # no checks of devices
    return inprocess.Wrapper(**(callbacks | given))


def environment() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}


def touched() -> dict[str, object]:
    """Returns the state that a call must leave unchanged."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    names = sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd))
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": [name.split(":[")[0] for name in names],
        "handlers": handlers,
        "hook": sys.unraisablehook,
        "environment": dict(os.environ),
    }


def _is_open(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


SCENARIOS: dict[str, Callable[[], None]] = {}


def scenario(run: Callable[[], None]) -> Callable[[], None]:
    SCENARIOS[run.__name__] = run
    return run
