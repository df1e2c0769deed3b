"""Which ranks did a supervisor of adopted ranks meet, and which of them have ended since it died?

A few lines in its directory, which whoever starts its successor keeps. Without them, a rank that died while nobody
watched would be missed only once all others have waited for it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from holdfast_wire.private_folder import RANKS_FILE

from supervisor.edges.machine.processes import process_table

BYTES_MAX = 1024 * 1024

_log = logging.getLogger("holdfast.workers")


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

    def ended(self) -> dict[int, int]:
        """The pids of those that live no more, by local rank."""
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
        return {local_rank: pid for local_rank, (pid, ticks) in met.items() if not _lives(pid, ticks)}


def _lives(pid: int, started_ticks: int) -> bool:
    """Whether it is this very process, and no zombie."""
    entry = process_table.look_up(pid)
    return entry is not None and entry.started_ticks == started_ticks and entry.state not in ("Z", "X")
