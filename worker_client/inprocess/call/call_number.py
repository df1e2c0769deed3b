"""Which call of a wrapped function is this, and may this process begin one now?"""

from __future__ import annotations

import os
import sys
import threading

_calls = 0
_pid_in_call = 0


def check_may_begin() -> None:
    """Raises ValueError if torch.distributed is initialised, off the main thread, or inside another call."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        raise ValueError(
            "cannot call the wrapped function: torch.distributed is initialised already; initialise it in the wrapped "
            "function, or destroy its process groups before the call"
        )
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("cannot call the wrapped function: this is not the main thread; call it on the main thread")
    if _pid_in_call == os.getpid():
        raise ValueError(
            "cannot call the wrapped function: another one is running in this process; call it after that has returned"
        )


def begin() -> int:
    """Returns the number of the call, from 1. Every rank counts, so the n-th call of each rank is the same call."""
    global _calls, _pid_in_call
    _calls += 1
    _pid_in_call = os.getpid()
    return _calls


def end() -> None:
    """Lets another call begin."""
    global _pid_in_call
    _pid_in_call = 0
