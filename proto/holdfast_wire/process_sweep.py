"""How are processes killed from outside that may fork faster than anybody can look?

A list of /proc is not a snapshot. A process that forks and ends again and again is on no list by its newest pid. A look
that finds nobody proves nothing if processes of its list have ended meanwhile, because one of them may have left a
child: it counts only if none has, twice in a row. Processes that are found are killed at once, the newest first, with
their process group where the kernel can do that in one step.

Standard library only, Python 3.9: deploy/slurm has a copy of this file beside its epilog.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Optional

QUIET_LOOKS = 2  # in a row that find nobody and miss nobody
NOISY_S = 1.0  # on a node where processes end all the time, looks that find nobody are enough after that
CHASED_MAX = 64  # newest processes that are looked at one by one after a look that may have missed one
_PIDFD_SIGNAL_PROCESS_GROUP = 1 << 2  # Linux 6.9


class Entry(NamedTuple):
    """One entry of the process table. `started_ticks` counts clock ticks since boot."""

    pid: int
    state: str  # one letter, as in /proc/<pid>/stat
    parent_pid: int
    group: int
    session: int
    started_ticks: int

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"


def look_up(pid: int) -> Optional[Entry]:  # noqa: UP045 - for Python 3.9
    """Returns the process; None if it does not exist or may not be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read(4096)
    except OSError:
        return None
    # The name in brackets may contain anything, even brackets and spaces: count fields from the last bracket.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Entry(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def all_pids() -> list[int]:
    """Returns all visible processes, zombies included, the newest first as far as pids say that."""
    return sorted(map(int, filter(str.isdecimal, os.listdir("/proc"))), reverse=True)


def send(entry: Entry, number: int, *, to_group: bool = False) -> None:
    """Sends a signal by pidfd, and only if the pid is still that process. Never raises.

    `to_group`: to all processes of its group in one step, so that no child escapes, if the kernel can do that.
    """
    with suppress(OSError):  # it has ended by itself, or is not ours
        descriptor = os.pidfd_open(entry.pid)
        try:
            now = look_up(entry.pid)
            if now is None or now.started_ticks != entry.started_ticks:
                return
            if to_group:
                with suppress(OSError):  # an older kernel
                    signal.pidfd_send_signal(descriptor, number, None, _PIDFD_SIGNAL_PROCESS_GROUP)
            signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


class Sweep:
    """Kills all processes that are meant, and those that they start meanwhile."""

    def __init__(
        self,
        is_meant: Callable[[Entry], bool],
        *,
        with_groups: bool,
        related: Optional[Callable[[Sequence[Entry]], Iterable[Entry]]] = None,  # noqa: UP045 - for Python 3.9
        on_found: Callable[[Entry], None] = lambda _: None,
    ) -> None:
        """`is_meant` gets live processes, and may raise ProcessLookupError for one that has ended meanwhile.

        `related` replaces it for a list of all processes, zombies included: it returns those to kill, whose
        descendants it can only know as long as they live, and calls `note_missed` as `is_meant` raises.
        `with_groups`: if a process is meant, so is its group.
        `on_found` gets each process once, before it is killed.
        """
        self._is_meant = is_meant
        self._with_groups = with_groups
        self._related = related
        self._on_found = on_found
        self._zombies: set[tuple[int, int]] = set()
        self._missed = False
        self._is_blind = False  # files can't be opened, so a process that was not seen may be there
        self.found: dict[tuple[int, int], Entry] = {}  # by pid and start

    def run(self, give_up_at_s: float) -> bool:
        """Returns True once no look finds another one; False if they are found until then, on the monotonic clock."""
        quiet, noisy_until_s = 0, time.monotonic() + NOISY_S
        while quiet < QUIET_LOOKS:
            now_s = time.monotonic()
            if now_s > give_up_at_s:
                return False
            before = len(self.found)
            missed = self._look()
            if missed and not self._is_blind:
                self._chase()
            if len(self.found) > before:
                quiet, noisy_until_s = 0, now_s + NOISY_S
            else:
                quiet = 0 if self._is_blind or (missed and now_s < noisy_until_s) else quiet + 1
        return True

    def note_missed(self) -> None:
        """Notes that a process has ended while it was looked at."""
        self._missed = True

    def _look(self) -> bool:
        """Kills what is meant. Returns whether a process has ended meanwhile."""
        entries: list[Entry] = []
        missed = self._is_blind = False
        for pid in all_pids():
            entry = look_up(pid)
            if entry is None:
                missed = True
                self._is_blind = self._is_blind or not _can_open()
                continue
            entries.append(entry)
            if self._related is None and not entry.has_ended:
                missed = not self._take_if_meant(entry) or missed
        if self._related is not None:
            for entry in self._related(entries):
                self._take(entry)
        zombies = {(entry.pid, entry.started_ticks) for entry in entries if entry.has_ended}
        missed = missed or self._missed or not zombies <= self._zombies
        self._zombies, self._missed = zombies, False
        return missed

    def _chase(self) -> None:
        """Looks at the newest process again and again: a list of all is too slow for one that forks and ends."""
        before = len(self.found)
        for _ in range(CHASED_MAX):
            entry = look_up(_newest_pid())
            if entry is not None and not entry.has_ended:
                self._take_if_meant(entry)
            if len(self.found) > before:
                return

    def _take_if_meant(self, entry: Entry) -> bool:
        """Kills the process if it is meant. Returns False if it has ended meanwhile."""
        try:
            if self._is_meant(entry):
                self._take(entry)
        except ProcessLookupError:
            return False
        return True

    def _take(self, entry: Entry) -> None:
        key = entry.pid, entry.started_ticks
        if key not in self.found and not entry.has_ended:
            self.found[key] = entry
            self._on_found(entry)
            send(entry, signal.SIGKILL, to_group=self._with_groups)


def _can_open() -> bool:
    """Whether there are file descriptors left: without them, no process is seen."""
    try:
        with open("/proc/self/stat", "rb"):
            return True
    except OSError:
        return False


def _newest_pid() -> int:
    """Returns the pid that the kernel gave last, in this pid namespace."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[-1])
