"""Which ranks did a supervisor of adopted ranks meet, and which of them have ended since it died?

A few lines in its directory, which its successor finds there. Without them, a rank that died while nobody
watched would be missed only once all others have waited for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import msgspec
from holdfast_wire.private_folder import RANKS_FILE

from supervisor.edges.machine.processes import process_table

BYTES_MAX = 1024 * 1024

_log = logging.getLogger("holdfast.workers")


class Known(msgspec.Struct, frozen=True):
    """A rank that was noted. `pidfd`: -1 where it lives no more."""

    local_rank: int
    pid: int
    pidfd: int


class AdoptedRecord:
    def __init__(self, folder: Path) -> None:
        self._path = folder / RANKS_FILE

    def note(self, local_rank: int, pid: int) -> None:
        """One that can't be noted is only missed later."""
        entry = process_table.look_up(pid)
        if entry is None:
            return
        try:
            with self._path.open("a") as file:
                file.write(f"{local_rank} {pid} {entry.started_ticks}\n")
        except OSError as error:
            _log.warning("rank %d can't be noted for a successor: %s", local_rank, error)

    def known(self) -> list[Known]:
        """All that were noted. Each pidfd is the caller's to close."""
        found: list[Known] = []
        for local_rank, (pid, ticks) in self._met().items():
            pidfd = -1
            with contextlib.suppress(OSError):
                pidfd = os.pidfd_open(pid)
            if pidfd >= 0 and not _lives(pid, ticks):  # Else what was opened is this very process.
                os.close(pidfd)
                pidfd = -1
            found.append(Known(local_rank, pid, pidfd))
        return found

    def _met(self) -> dict[int, tuple[int, int]]:
        try:
            with self._path.open() as file:
                lines = file.read(BYTES_MAX).splitlines()
        except (OSError, ValueError):
            return {}
        met: dict[int, tuple[int, int]] = {}
        for line in lines:
            numbers = [int(word) for word in line.split() if word.isdecimal()]
            if len(numbers) == 3:
                met[numbers[0]] = numbers[1], numbers[2]
        return met


def _lives(pid: int, started_ticks: int) -> bool:
    """Whether it is this very process, and no zombie."""
    entry = process_table.look_up(pid)
    return entry is not None and entry.started_ticks == started_ticks and entry.state not in ("Z", "X")
