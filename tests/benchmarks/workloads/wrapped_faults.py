"""Runs a wrapped function that fails on a rank at each SIGUSR1 that the rank gets, and ends at SIGUSR2.

The function reports when it is entered, in which iteration and world, and when it fails.
"""

from recording import RANK, record

import argparse  # isort: skip
import ctypes
import datetime
import os
import signal
import time
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from wrapping import TUNED_S, call_wrapped

try:  # what changes in a script that moves over
    from worker_client import inprocess
except ImportError:
    from nvidia_resiliency_ext import inprocess  # pyright: ignore

PACE_S = 0.002  # how often the function returns to Python code, as a training step does
FOR_EVER_S = 3600


class Wanted:
    """What the bench wants of this rank."""

    fault = False
    end = False


def note_fault(*_: object) -> None:
    Wanted.fault = True


def note_end(*_: object) -> None:
    Wanted.end = True


def fail(call: Any) -> None:  # noqa: ANN401  (of two products)
    Wanted.fault = False
    match given.fault:
        case "exception":
            record("fault")
            raise ValueError("by intention")
        case "kill":
            record("fault")
            os.kill(os.getpid(), signal.SIGKILL)
        case "silence":
            last_ns = time.monotonic_ns()  # taken before the call: no supervisor can count from an earlier moment
            call.ping()
            record("fault", last_ns)
            wait_for_ever()
        case "gil":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            record("fault")
            # The signal that requests stacks would end the sleep, and with it the hang.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            ctypes.PyDLL(None).sleep(FOR_EVER_S)
        case _:
            raise AssertionError(given.fault)


def wait_for_ever() -> NoReturn:
    while True:
        time.sleep(PACE_S)


def train(call: Any) -> None:  # noqa: ANN401
    record("entered", iteration=call.iteration, as_rank=os.environ["RANK"], world_size=os.environ["WORLD_SIZE"])
    try:
        reduce(call) if given.gloo_timeout_s else wait(call)
    except BaseException as error:
        if type(error).__name__ == "RankShouldRestart":
            record("told", iteration=call.iteration)
        raise


def wait(call: Any) -> None:  # noqa: ANN401
    while not Wanted.end:
        if Wanted.fault:
            fail(call)
        time.sleep(PACE_S)


def reduce(call: Any) -> None:  # noqa: ANN401
    """Lets all ranks but 1 wait in an all_reduce, which rank 1 joins at the very end, unless it fails before."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=given.gloo_timeout_s))
    dist.barrier()  # pyright: ignore[reportUnknownMemberType]
    record("connected", iteration=call.iteration)
    if RANK == 1:
        wait(call)
    dist.all_reduce(torch.ones(1))  # pyright: ignore[reportUnknownMemberType]
    dist.destroy_process_group()


parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="exception")
parser.add_argument("--tuned", action="store_true")
parser.add_argument("--gloo-timeout-s", type=float, default=0.0)
parser.add_argument("--durations-s", nargs="*", default=[], metavar="NAME=SECONDS")
given = parser.parse_args()
durations_s = {name: float(value) for name, _, value in (entry.partition("=") for entry in given.durations_s)}
signal.signal(signal.SIGUSR1, note_fault)
signal.signal(signal.SIGUSR2, note_end)
call_wrapped(inprocess, train, **{**(TUNED_S if given.tuned else {}), **durations_s})
record("returned")
