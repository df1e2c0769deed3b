"""Did the kernel kill a process, or a child of it, because memory ran out?"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NamedTuple

from . import cgroup
from .reaping import Ending


class OomCounter(NamedTuple):
    """Where the kernel counts its out-of-memory kills for a process, and the count at one moment."""

    path: str
    kills: int

    def kills_since(self) -> int:
        return max(0, _oom_kills(self.path) - self.kills)


def oom_counter(folder: str) -> OomCounter:
    """Returns the counter for what this process is about to start in the cgroup v2 `folder` ("": its own).

    Without a memory cgroup, it is that of the whole machine (/proc/vmstat).
    """
    path = _memory_events(folder) or "/proc/vmstat"
    return OomCounter(path, _oom_kills(path))


def ran_out_of_memory(ending: Ending, *, killed_by_us: bool, counter: OomCounter | None) -> bool:
    """Returns whether the kernel's out-of-memory killer ended the process or, in its memory cgroup, a child of it."""
    if killed_by_us or ending.code == 0 or counter is None:
        return False
    if counter.path == "/proc/vmstat" and ending.signal != signal.SIGKILL:
        return False  # The machine's count says nothing about this process unless it was killed itself.
    return counter.kills_since() > 0


def _memory_events(folder: str) -> str:
    mounts = cgroup.mounts()
    paths = cgroup.paths_of("self")
    if "memory" in paths and "memory" in mounts:
        file = f"{cgroup.under(mounts['memory'], paths['memory'])}/memory.oom_control"
        return file if os.path.exists(file) else ""
    if "" not in paths or "cgroup2" not in mounts:
        return ""
    folder, top = folder or cgroup.under(mounts["cgroup2"], paths[""]), mounts["cgroup2"][0]
    while folder.startswith(top):  # The controller may be enabled only above; its count includes everything below.
        if os.path.exists(f"{folder}/memory.events"):
            return f"{folder}/memory.events"
        folder = os.path.dirname(folder)
    return ""


def _oom_kills(path: str) -> int:
    with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        for line in file:
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
