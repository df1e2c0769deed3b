"""Where is a worker's exit recorded while no supervisor listens?"""

from __future__ import annotations

import os
from contextlib import suppress

from holdfast_wire import spawner_link


class UnreportedExits:
    """One file per job with one message of the spawner link (JSON) per line, for a returning supervisor."""

    def __init__(self, folder: str, job_id: str) -> None:
        name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in job_id)
        self._path = os.path.join(folder, f"{name}.exits.jsonl") if folder else ""

    def write(self, exited: spawner_link.Exited) -> None:
        """Appends one exit. If the disk fails, only the record is lost."""
        if not self._path:
            return
        with suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, spawner_link.encode(exited) + b"\n")
                os.fsync(fd)
            finally:
                os.close(fd)
