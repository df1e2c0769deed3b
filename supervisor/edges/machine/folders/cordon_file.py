"""How does a node stay cordoned when its supervisor restarts or crashes, or the node reboots?

A file in the state directory holds the reason for as long as the node is cordoned. Nodes that share that folder have a
file each.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import anyio
from anyio import CapacityLimiter

from supervisor.edges.machine import records
from supervisor.edges.machine.network_folders import file_of_node
from supervisor.edges.machine.own_process.threads import in_thread

NAME = "cordoned"
REASON_BYTES_MAX = 16 * 1024
KEPT_WITHIN_S = 2.0  # after this time, the command that cordons no longer waits for the disk

_log = logging.getLogger("holdfast")


class CordonFile:
    """Keeps the reason on disk. If the disk is full or hangs, a warning says that a restart forgets the last change."""

    def __init__(self, state: Path) -> None:
        self._path = file_of_node(state, NAME)
        self._earlier = state / NAME  # of an earlier version, for all nodes that share the folder; else the same
        self._one_at_a_time = CapacityLimiter(1)  # this includes writes for which nobody waits any more

    def read(self) -> str:
        """Returns why the node is cordoned, "" if it is not. Blocks; never raises."""
        path = self._path if os.path.lexists(self._path) else self._earlier
        try:
            return records.content(path, bytes_max=REASON_BYTES_MAX).decode(errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"the reason is not known, since {path} can't be read: {error.strerror or error}"

    async def keep(self, reason: str) -> None:
        """Records the reason; "" means that it takes jobs again. Warns if the disk does not work; never raises."""
        try:
            with anyio.fail_after(KEPT_WITHIN_S):
                await in_thread(lambda: self._write(reason), abandon_on_cancel=True, limiter=self._one_at_a_time)
        except OSError as error:  # TimeoutError is one
            what = "that the node is cordoned" if reason else "that the node is no longer cordoned"
            why = error.strerror or str(error) or "the disk does not answer"
            _log.warning("cannot note %s in %s: %s; the next supervisor will not know it", what, self._path, why)

    def _write(self, reason: str) -> None:
        """Writes or removes the file. Raises OSError."""
        if not reason:
            self._path.unlink(missing_ok=True)
            self._earlier.unlink(missing_ok=True)
            return
        fresh = self._path.with_name(f"{self._path.name}.new")  # whole: names of nodes that share the folder have dots
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(reason.encode(errors="replace")[:REASON_BYTES_MAX])
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
