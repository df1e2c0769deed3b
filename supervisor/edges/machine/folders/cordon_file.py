"""How does a node stay cordoned when its supervisor restarts or crashes, or the node reboots?

A file in the state directory holds the reason for as long as the node is cordoned. Nodes that share that folder have a
file each. While nothing can be written there, a stand-in takes the file: both are read, whichever is used at the time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
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

    def __init__(self, *states: Path, stand_in: Callable[[], Path | None] = lambda: None) -> None:
        """`states`: folders of this user's, the first of which that can be written gets the file.

        If none can, the folder that `stand_in` returns gets it, which is one of `states` at the next start.
        """
        self._paths = [file_of_node(state, NAME) for state in states]
        # Of an earlier version, for all nodes that share the folder; else the same.
        self._earlier = [state / NAME for state in states]
        self._stand_in = stand_in
        self._one_at_a_time = CapacityLimiter(1)  # this includes writes for which nobody waits any more

    def read(self) -> str:
        """Returns why the node is cordoned, "" if it is not. Blocks; never raises."""
        found = (_read(path) for path in (*self._paths, *self._earlier))
        return next((reason for reason in found if reason), "")

    async def keep(self, reason: str) -> None:
        """Records the reason; "" means that it takes jobs again. Warns if the disk does not work; never raises."""
        try:
            with anyio.fail_after(KEPT_WITHIN_S):
                await in_thread(lambda: self._write(reason), abandon_on_cancel=True, limiter=self._one_at_a_time)
        except OSError as error:  # TimeoutError is one
            what = "that the node is cordoned" if reason else "that the node is no longer cordoned"
            why = error.strerror or str(error) or "the disk does not answer"
            _log.warning("cannot note %s in %s: %s; the next supervisor will not know it", what, self._paths[0], why)

    def _write(self, reason: str) -> None:
        """Writes the file, or removes all. Raises OSError."""
        fault: OSError | None = None
        for path in self._paths if reason else (*self._paths, *self._earlier):
            try:
                if reason:
                    _replace(path, reason)
                    return
                if os.path.lexists(path):  # a read-only file system refuses to remove even nothing
                    path.unlink(missing_ok=True)
            except OSError as error:
                fault = fault or error
        if fault is not None and reason and (further := self._stand_in()) is not None:
            self._paths.append(file_of_node(further, NAME))
            _replace(self._paths[-1], reason)
            text = "the node's cordon is noted in %s, which may not outlive this node's next reboot: %s"
            _log.warning(text, further, fault.strerror or fault)
        elif fault is not None:
            raise fault


def _read(path: Path) -> str:
    """Returns the text of the file, "" without one."""
    try:
        return records.content(path, bytes_max=REASON_BYTES_MAX).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"the reason is not known, since {path} can't be read: {error.strerror or error}"


def _replace(path: Path, reason: str) -> None:
    fresh = path.with_name(f"{path.name}.new")  # whole: names of nodes that share the folder have dots
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(reason.encode(errors="replace")[:REASON_BYTES_MAX])
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
