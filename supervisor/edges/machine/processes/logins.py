"""Which login do a user id's connections and supervisors count for?

useradd grants each login 65,536 subordinate user ids, with which its user may run processes in a user namespace. Bounds
that counted each of these ids for itself would be no bounds.
"""

from __future__ import annotations

import os
import pwd
import threading
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path

SUBORDINATE = Path("/etc/subuid")
FILE_BYTES_MAX = 8 * 1024 * 1024

_Range = tuple[int, int, int]  # first user id, last one, the login's own


class Logins:
    """The ranges of /etc/subuid. A changed file is read again in a thread: a name may be looked up on a server."""

    def __init__(self, path: Path = SUBORDINATE) -> None:
        """Blocks on the user database."""
        self._path = path
        self._reading = threading.Lock()
        self._read_as = self._stamp()
        self._ranges = _read(path)

    def of(self, uid: int) -> int:
        """Returns the user id of the login that owns this one. Never blocks."""
        if self._stamp() != self._read_as and self._reading.acquire(blocking=False):
            threading.Thread(target=self._read_again, name="subordinate ids", daemon=True).start()
        ranges = self._ranges
        at = bisect_right(ranges, uid, key=lambda each: each[0]) - 1
        return ranges[at][2] if at >= 0 and uid <= ranges[at][1] else uid

    def _read_again(self) -> None:
        try:
            self._read_as = self._stamp()
            self._ranges = _read(self._path)
        finally:
            self._reading.release()

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError:
            return 0, 0, 0
        return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path) -> list[_Range]:
    """Returns the ranges in order. A line of root's, or of an unknown login, makes nobody responsible for its ids."""
    ranges: list[_Range] = []
    try:
        with path.open(errors="replace") as file:
            lines = file.read(FILE_BYTES_MAX).splitlines()
    except OSError:
        return []
    for line in lines:
        with suppress(ValueError, KeyError):
            name, first, count = line.strip().split(":")
            owner = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
            if owner:
                ranges.append((int(first), int(first) + int(count) - 1, owner))
    return sorted(ranges)
