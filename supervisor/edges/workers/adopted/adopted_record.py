"""Which ranks did a supervisor of adopted ranks meet, and which of them have ended since it died?

A few lines in its directory, which its successor reads. Without them, a rank that died while nobody watched would be
missed only after all others have waited for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import msgspec
from holdfast_wire.private_supervisor import RANKS_FILE

from supervisor.edges.machine import records
from supervisor.edges.machine.processes import process_table

BYTES_MAX = 1024 * 1024
DIGITS_MAX = 18  # of a number

_log = logging.getLogger("holdfast.workers")


class Known(msgspec.Struct, frozen=True):
    """A recorded rank. `pidfd`: -1 if it has ended."""

    local_rank: int
    pid: int
    pidfd: int


class AdoptedRecord:
    def __init__(self, folder: Path) -> None:
        self._path = folder / RANKS_FILE

    def note(self, local_rank: int, pid: int) -> None:
        """Records a rank. If that fails, its end is only noticed later."""
        entry = process_table.look_up(pid)
        if entry is None:
            return
        try:
            with self._path.open("a") as file:
                file.write(f"{local_rank} {pid} {entry.started_ticks}\n")
        except OSError as error:
            _log.warning("rank %d can't be noted for a successor: %s", local_rank, error)

    def known(self) -> list[Known]:
        """Returns all recorded ranks. The caller must close each pidfd."""
        found: list[Known] = []
        for local_rank, (pid, ticks) in self._met().items():
            pidfd = -1
            with contextlib.suppress(OSError, OverflowError):
                pidfd = os.pidfd_open(pid)
            if pidfd >= 0 and not _lives(pid, ticks):  # else the descriptor is of this very process
                os.close(pidfd)
                pidfd = -1
            found.append(Known(local_rank, pid, pidfd))
        return found

    def _met(self) -> dict[int, tuple[int, int]]:
        try:
            lines = records.content(self._path, bytes_max=BYTES_MAX).splitlines()
        except OSError:
            return {}
        met: dict[int, tuple[int, int]] = {}
        for line in lines:
            numbers = [int(word) for word in line.split() if word.isdigit() and len(word) <= DIGITS_MAX]
            if len(numbers) == 3:
                met[numbers[0]] = numbers[1], numbers[2]
        return met


def _lives(pid: int, started_ticks: int) -> bool:
    """Returns whether it is this very process, and no zombie."""
    entry = process_table.look_up(pid)
    return entry is not None and entry.started_ticks == started_ticks and entry.state not in ("Z", "X")
