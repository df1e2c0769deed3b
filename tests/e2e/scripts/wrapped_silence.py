"""A function under the Wrapper in which rank 1 is silent, or others wait for it, in the way that the argument names."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import NoReturn, cast

from worker_client import RankMonitorClient, inprocess
from worker_client.inprocess import CallWrapper, FrozenState

SOFT_TIMEOUT_S, HARD_TIMEOUT_S, GRACE_S = 2.0, 3.0, 0.5
FOR_EVER_S = 3600.0
RANK = int(os.environ["RANK"])
CASE = sys.argv[1]
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "rank": RANK, "pid": os.getpid(), "at": time.monotonic(), **more})
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def has_happened(what: str) -> bool:
    with open(os.environ["TRACE"]) as trace:
        return f'"what": "{what}"' in trace.read()


def execute_python(for_s: float, *, until: str = "") -> None:
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s and not (until and has_happened(until)):
        time.sleep(0.005)


class LongFinalize(inprocess.finalize.Finalize):
    def __call__(self, state: FrozenState) -> FrozenState:
        if CASE == "long_recovery" and RANK == 1:
            execute_python(HARD_TIMEOUT_S + 0.5)
            note("finalized")
        return state


@inprocess.Wrapper(
    finalize=LongFinalize(),
    soft_timeout=timedelta(seconds=SOFT_TIMEOUT_S),
    hard_timeout=timedelta(seconds=HARD_TIMEOUT_S),
    termination_grace_time=timedelta(seconds=GRACE_S),
    monitor_thread_interval=timedelta(seconds=1),
)
def train(call: CallWrapper = INJECTED) -> int:
    note("fn", iteration=call.iteration, world_size=os.environ["WORLD_SIZE"])
    try:
        run(call)
    except BaseException as error:
        note("interrupted", iteration=call.iteration, message=str(error))
        raise
    return call.iteration


def run(call: CallWrapper) -> None:
    match CASE, call.iteration:
        case ("swallow", 0):
            swallow()
        case ("deaf" | "stopped" | "block", 0):
            if RANK == 1:
                be_beyond_reach(call)
            execute_python(FOR_EVER_S)
        case ("ping", 0):
            if RANK == 1:
                call.ping()
                note("fault")
            execute_python(FOR_EVER_S)  # the others never said that they would continue
        case ("no_beat" | "no_beat_deaf", _):
            monitored(call)
        case ("unarmed", 0):
            execute_python(SOFT_TIMEOUT_S - 0.2)  # longer than its limit of the monitoring
        case ("protected", 0):
            protected(call)
        case ("protected", 1):
            if RANK == 1:
                time.sleep(FOR_EVER_S)
            execute_python(FOR_EVER_S)
        case ("long_recovery", 0):
            if RANK == 1:
                raise ValueError("by intention")
            execute_python(FOR_EVER_S)
        case ("long_recovery", 1):
            ping_for_long(call)
        case _:
            pass


def ping_for_long(call: CallWrapper) -> None:
    call.ping()
    if RANK == 1:
        for _ in range(7):
            execute_python(HARD_TIMEOUT_S / 6)
            call.ping()


def swallow() -> None:
    if RANK == 2:
        execute_python(FOR_EVER_S, until="ready")
        note("fault")
        raise ValueError("by intention")
    if RANK == 1:
        note("ready")
        while True:
            with contextlib.suppress(BaseException):
                execute_python(FOR_EVER_S)
            note("swallowed")
    execute_python(FOR_EVER_S)


def keep_block(call: CallWrapper) -> None:
    """Raises while another thread stays in an atomic block."""
    inside = threading.Event()

    def stay() -> None:
        with call.atomic():
            inside.set()
            time.sleep(FOR_EVER_S)

    threading.Thread(target=stay, daemon=True).start()
    inside.wait()
    note("fault")
    raise ValueError("by intention")


def be_beyond_reach(call: CallWrapper) -> None:
    if CASE == "block":
        keep_block(call)
    if CASE != "stopped":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note("fault")
        # The signal that requests stacks would end the sleep.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.PyDLL(None).sleep(int(FOR_EVER_S))
    signal.signal(signal.SIGTERM, end)
    note("fault")
    os.kill(os.getpid(), signal.SIGSTOP)
    execute_python(FOR_EVER_S)


def monitored(call: CallWrapper) -> None:
    """All ranks send heartbeats; in iteration 0, rank 1 stops: it executes Python code, or holds the GIL."""
    for beat in range(4):
        CLIENT.send_heartbeat()
        if RANK == 1 and call.iteration == 0 and beat == 1:
            if CASE == "no_beat_deaf":
                be_beyond_reach(call)
            note("fault")
            execute_python(FOR_EVER_S)
        execute_python(0.2)
    while RANK != 1 and call.iteration == 0:
        CLIENT.send_heartbeat()
        execute_python(0.2)


def end(_signal: int, _frame: object) -> NoReturn:
    """The restart is also due, and may be raised in here."""
    while True:
        with contextlib.suppress(BaseException):
            note("sigterm")
            os._exit(3)


def protected(call: CallWrapper) -> None:
    """No limit applies in the block, its time does not count afterwards, and exceptions in it propagate."""
    if RANK == 1:
        with call.disable_hang_protection():
            time.sleep(HARD_TIMEOUT_S + 0.5)
        execute_python(SOFT_TIMEOUT_S / 4)
        with call.disable_hang_protection(), call.disable_hang_protection():
            raise ValueError("by intention")
    execute_python(FOR_EVER_S)


CLIENT = RankMonitorClient()
if CASE.startswith("no_beat"):
    CLIENT.init_workload_monitoring()
note("returned", value=train())
