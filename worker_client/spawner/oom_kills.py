"""Did the kernel kill a process, or a child of it, because memory ran out?

The kernel counts its kills per memory cgroup, which ranks share, with neither pid nor time. So the counts are read
regularly, and a kill explains only an end that comes soon after it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from . import cgroup
from .event_loop import Events
from .reaping import Ending

LOOK_S = 10.0  # memory.events would notify, but of each time that the limit makes the kernel free something, too
SOON_S = 60.0  # a process with much memory, or in a call to a file system, takes a while to end


class OomCounter:
    """Where the kernel counts its out-of-memory kills for a process, and when a look last found more of them."""

    __slots__ = ("_kills", "_rose_at_s", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._kills = _oom_kills(path)
        self._rose_at_s: float | None = None

    def look(self) -> None:
        kills = _oom_kills(self.path)
        if kills > self._kills:
            self._kills, self._rose_at_s = kills, time.monotonic()

    def killed_lately(self) -> bool:
        self.look()
        return self._rose_at_s is not None and time.monotonic() - self._rose_at_s <= SOON_S


def oom_counter(folder: str) -> OomCounter:
    """Returns the counter for what this process is about to start in the cgroup v2 `folder` ("": its own).

    Without a memory cgroup, it is that of the whole machine (/proc/vmstat).
    """
    return OomCounter(_memory_events(folder) or "/proc/vmstat")


def look_regularly(events: Events, counters: Callable[[], set[OomCounter]]) -> None:
    """Looks at the counters now and every LOOK_S, until there are none."""
    found = counters()
    for counter in found:
        counter.look()
    if found:
        events.set_timer("out-of-memory kills", LOOK_S, lambda: look_regularly(events, counters))


def ran_out_of_memory(ending: Ending, *, killed_by_us: bool, counter: OomCounter | None) -> bool:
    """Returns whether the kernel's out-of-memory killer ended the process or, in its memory cgroup, a child of it."""
    if killed_by_us or ending.code == 0 or counter is None:
        return False
    if ending.signal != signal.SIGKILL and (ending.code is None or counter.path == "/proc/vmstat"):
        return False  # The kernel sends no other signal. The machine's count says nothing about children.
    return counter.killed_lately()


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
