"""When may a Gloo process group be dropped, so that its end does not stop the whole process?

torch's destructor of a Gloo group holds the GIL and joins the group's threads. A thread that has just finished a
collective briefly needs the GIL, to drop what the collective kept. Then both wait, and with them all Python code of the
process, until the hard timeout kills it (seen with torch 2.13, once in some dozens of aborts). So the groups of an
aborted function are kept until their threads are idle.
"""

from __future__ import annotations

import os
import platform
import threading
from time import monotonic
from typing import TYPE_CHECKING

from worker_client.guarded_log import GuardedLog

if TYPE_CHECKING:
    from collections.abc import Sequence

IDLE_TIMEOUT_S = 2.0
PAUSE_S = 0.001  # between two looks; nothing signals that a torch thread is idle
_THREAD = "pt_gloo_runloop"
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
_NEVER = "0x0"  # no timeout: a thread that waits for the GIL, or for another rank, has one

log = GuardedLog("holdfast")

_busy: list[object] = []  # groups whose threads never became idle: never dropped


class KeptGroups:
    """The groups of one abort. The main thread must have left the function before they are released."""

    def __init__(self) -> None:
        self._groups: list[object] = []

    def keep(self, groups: Sequence[object]) -> None:
        self._groups += groups

    def let_go(self) -> None:
        """Drops them once their threads are idle. Blocks for IDLE_TIMEOUT_S at most; busy ones are kept for good."""
        if not self._groups:
            return
        deadline_s = monotonic() + IDLE_TIMEOUT_S
        rest = threading.Event()
        while not threads_rest():
            if monotonic() > deadline_s:
                log.warning("threads of Gloo are busy %g s after the abort; their groups stay", IDLE_TIMEOUT_S)
                _busy.extend(self._groups)
                break
            rest.wait(PAUSE_S)
        self._groups = []


def threads_rest() -> bool:
    """Returns whether every thread of a Gloo group waits for work. True if there is none or the kernel does not say."""
    return all(_rests(f"/proc/self/task/{thread}") for thread in _threads())


def _threads() -> list[str]:
    try:
        return os.listdir("/proc/self/task")
    except OSError:
        return []


def _rests(folder: str) -> bool:
    if _read(f"{folder}/comm").rstrip("\n") != _THREAD:
        return True
    call = _read(f"{folder}/syscall").split()
    if not call:  # it has ended, or the kernel does not say
        return True
    # futex(address, operation, value, timeout, …)
    return len(call) > 4 and call[0] == str(_FUTEX) and call[4] == _NEVER


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
