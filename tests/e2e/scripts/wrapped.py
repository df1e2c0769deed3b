"""A function under the Wrapper; its rank 1 has the fault that the argument names, in iteration 0."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from typing import cast

from worker_client import inprocess
from worker_client.inprocess import CallWrapper

RANK = int(os.environ["RANK"])
FAULT = sys.argv[1]
FOR_EVER_S = 3600.0
RANDOM_ITERATIONS = 30
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "rank": RANK, "at": time.monotonic(), **more})
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def fail() -> None:
    note("fault")
    match FAULT:
        case "exception" | "exception-at-go":
            raise ValueError("by intention")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.exit(3)
        case "sleep":
            time.sleep(FOR_EVER_S)
        case "gil":
            # The signal that requests stacks would end the sleep.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGTERM})
            ctypes.PyDLL(None).sleep(int(FOR_EVER_S))
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            raise AssertionError(FAULT)


@inprocess.Wrapper(
    soft_timeout=timedelta(seconds=2),
    hard_timeout=timedelta(seconds=3),
    termination_grace_time=timedelta(seconds=0.5),
    monitor_thread_interval=timedelta(seconds=1),
)
def train(call: CallWrapper = INJECTED) -> int:
    note("fn", iteration=call.iteration, as_rank=os.environ["RANK"], world_size=os.environ["WORLD_SIZE"])
    if FAULT == "random":
        return at_random(call)
    if call.iteration == 0 and FAULT != "none":
        if RANK == 1:
            time.sleep(0.2)
            while FAULT == "exception-at-go" and not os.path.exists("go"):
                time.sleep(0.005)
            fail()
        while True:
            time.sleep(0.001)
    return RANK


def at_random(call: CallWrapper) -> int:
    """Raises exceptions at any moment on any rank, and sometimes kills one."""
    dice = random.Random(f"{RANK} {call.iteration}")
    time.sleep(dice.uniform(0, 0.02))
    if call.iteration >= RANDOM_ITERATIONS:
        return call.iteration
    if call.iteration % 10 == 5 and call.iteration // 10 == RANK:
        os.kill(os.getpid(), signal.SIGKILL)
    if dice.random() < 0.3 or call.iteration % 3 == RANK:
        raise ValueError("by intention")
    return call.iteration


note("returned", value=train())
