"""Which processes descend from this one, through any number of parents and sessions?

The spawner is a child subreaper: a descendant whose parent dies becomes its own child, so a walk from the spawner down
finds every escaped process (setsid, double fork). Processes are never searched for by name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def own_pid() -> int:
    return os.getpid()


def send(pid: int, number: int) -> None:
    """Sends a signal; skips a process that is gone, or now belongs to another user."""
    with suppress(OSError):
        os.kill(pid, number)


def session_of(pid: int) -> int | None:
    """Returns the session of `pid`; None if it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def start_ticks(pid: int) -> int | None:
    """Returns when `pid` started, in clock ticks since boot; None if it is gone."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def ticks_now() -> int:
    """Returns the current time in the units of `start_ticks`."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * _TICKS_PER_S // 1_000_000_000


def is_zombie(pid: int) -> bool:
    """Returns whether `pid` has ended and only waits to be reaped, or is gone."""
    fields = _stat_fields(pid)
    return fields is None or fields[0] in (b"Z", b"X")


def ignores(pid: int, number: int) -> bool:
    """Returns whether `pid` ignores that signal; False if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            ignored = file.read().partition(b"\nSigIgn:")[2].split(maxsplit=1)[0]
    except (OSError, IndexError):
        return False
    return bool(int(ignored, 16) >> (number - 1) & 1)


def children_reader() -> Callable[[int], list[int]]:
    """Returns a function that lists the children of a process, for one walk.

    It reads /proc/PID/task/*/children if the kernel has it (CONFIG_PROC_CHILDREN), else all of /proc once.
    """
    if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return _children_by_file
    parents = _parents()
    return lambda pid: [child for child, parent in parents.items() if parent == pid]


def descendants(roots: Collection[int], children_of: Callable[[int], list[int]]) -> list[int]:
    """Returns `roots` and everything below them, parents before children."""
    found: dict[int, None] = dict.fromkeys(roots)
    waiting = list(roots)
    while waiting:
        for child in children_of(waiting.pop()):
            if child not in found:
                found[child] = None
                waiting.append(child)
    return list(found)


def _children_by_file(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(OSError):  # Gone meanwhile: its children are adopted, and the next walk finds them.
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                children.extend(int(each) for each in file.read().split())
    return children


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat_fields(int(name))):
            parents[int(name)] = int(fields[1])
    return parents


def _stat_fields(pid: int) -> list[bytes] | None:
    """Returns the fields of proc_pid_stat(5) from the third (state) on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None
