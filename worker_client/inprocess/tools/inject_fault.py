"""How is a fault injected into a training script, at a random but repeatable moment, to see that it recovers?"""

from __future__ import annotations

import ctypes
import enum
import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from worker_client.guarded_log import GuardedLog
from worker_client.job_nodes import NO_RANK

log = GuardedLog("holdfast")


class Fault(enum.Enum):
    """The kind of fault to inject."""

    EXCEPTION = enum.auto()  # InjectedFaultError in the main thread
    HANG = enum.auto()  # the main thread waits indefinitely, without the GIL
    LOCK_GIL = enum.auto()  # no Python thread runs any more
    GPU_SLEEP = enum.auto()  # the GPU is busy indefinitely; needs CUDA
    EXIT = enum.auto()  # the process ends with code 1, without cleaning up
    ABORT = enum.auto()
    SEGFAULT = enum.auto()
    SIGINT = enum.auto()
    SIGTERM = enum.auto()
    SIGKILL = enum.auto()
    SIGSTOP = enum.auto()


class InjectedFaultError(Exception):
    """Raised in the main thread by Fault.EXCEPTION."""


def inject_fault(
    faults: Fault | Sequence[Fault],
    num_faults: int = 1,
    keep_alive: int = 1,
    delay_s: float | tuple[float, float] = 0.0,  # a pair is a range
    seed: int | None = None,
) -> threading.Timer | None:
    """Breaks `num_faults` of the ranks after `delay_s` seconds, each by one of `faults`. Call it on every rank.

    Ranks are chosen by `seed`, RANK and WORLD_SIZE, alike on all ranks with the same seed; the first `keep_alive` ranks
    are spared, and those in reserve. Does not block: returns the timer if this rank is chosen, else None. Without a
    seed, each rank decides by itself, with the same probability.
    """
    kinds = (faults,) if isinstance(faults, Fault) else tuple(faults)
    if not kinds:
        raise ValueError("cannot inject a fault: no kind is given; give at least one")
    if os.environ.get("RANK") == NO_RANK:
        return None
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    candidates = range(min(keep_alive, world_size), world_size)
    chance = random.Random(seed)
    if seed is None:
        is_chosen = rank in candidates and chance.random() * len(candidates) < num_faults
    else:
        is_chosen = rank in chance.sample(candidates, min(num_faults, len(candidates)))
    if not is_chosen:
        return None
    own = random.Random(None if seed is None else f"{seed}/{rank}")
    fault = own.choice(kinds)
    after_s = own.uniform(*delay_s) if isinstance(delay_s, tuple) else delay_s
    main_thread = threading.main_thread().ident or 0
    timer = threading.Timer(after_s, _break, (fault, main_thread))
    timer.name, timer.daemon = "holdfast-inject-fault", True
    timer.start()
    return timer


def _break(fault: Fault, main_thread: int) -> None:
    log.warning("injecting the fault %s", fault.name)
    match fault:
        case Fault.EXCEPTION:
            _raise_in(main_thread, InjectedFaultError)
        case Fault.HANG:
            _call_in_main(_wait_indefinitely)
        case Fault.LOCK_GIL:
            _hold_gil()
        case Fault.GPU_SLEEP:
            _keep_gpu_busy()
        case Fault.EXIT:
            os._exit(1)
        case Fault.ABORT:
            os.abort()
        case Fault.SEGFAULT:
            ctypes.string_at(0)
        case Fault.SIGINT | Fault.SIGTERM | Fault.SIGKILL | Fault.SIGSTOP:
            os.kill(os.getpid(), signal.Signals[fault.name])


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _wait_indefinitely(_: int | None) -> int:
    threading.Event().wait()
    return 0


def _call_in_main(function: Callable[..., int]) -> None:
    """Makes the interpreter call the function in its main thread, between two bytecodes."""
    ctypes.pythonapi.Py_AddPendingCall(function, None)


def _hold_gil() -> None:
    """Holds the GIL inside C, where no signal arrives, and never releases it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).pause()


def _keep_gpu_busy() -> None:
    import torch

    cuda: Any = torch.cuda
    cuda._sleep(1 << 62)  # torch has no public call for it
