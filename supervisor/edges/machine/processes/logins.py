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

from supervisor.edges.machine.clock import Clock

SUBORDINATE = Path("/etc/subuid")
FILE_BYTES_MAX = 8 * 1024 * 1024
ASKED_MAX = 1024  # ids that wait to be looked up
KNOWN_MAX = 65_536  # ids whose answers are kept
UNKNOWN_S = 60.0  # until an id without a login is looked up again

_Range = tuple[int, int, int]  # first user id, last one, the login's own


class Logins:
    """The ranges of /etc/subuid. What only the user database knows is looked up in a thread: it may be on a server.

    That is whose the names in that file are, and whether an id in a range is a login itself: a directory service may
    count from 100,000 on. Until that is known, a named login has no range, and an id counts for the range's owner.
    """

    def __init__(self, path: Path = SUBORDINATE) -> None:
        self._path = path
        self._clock = Clock()
        self._looking_up = threading.Lock()
        self._read_as: tuple[int, int, int] | None = None  # None: its names are not looked up yet
        self._ranges = _read(path, with_names=False)
        self._known: dict[int, float] = {}  # until when an id counts as no login; infinite: it is one
        self._asked = set[int]()
        self._look_up_soon()

    def of(self, uid: int) -> int:
        """Returns the user id of the login that counts for this one. Never blocks."""
        if self._stamp() != self._read_as:
            self._look_up_soon()
        at = bisect_right(self._ranges, uid, key=lambda each: each[0]) - 1
        if at < 0 or uid > self._ranges[at][1]:
            return uid
        until_s = self._known.get(uid, 0.0)
        if until_s <= self._clock.now_s() and len(self._asked) < ASKED_MAX:
            self._asked.add(uid)
            self._look_up_soon()
        return uid if until_s == float("inf") else self._ranges[at][2]

    def _look_up_soon(self) -> None:
        if self._looking_up.acquire(blocking=False):
            try:
                threading.Thread(target=self._look_up, name="logins", daemon=True).start()
            except (RuntimeError, MemoryError):  # No thread: the next call tries again.
                self._looking_up.release()

    def _look_up(self) -> None:
        try:
            stamp = self._stamp()
            if stamp != self._read_as:
                self._ranges = _read(self._path, with_names=True)
                self._read_as = stamp
            while self._asked:
                uid = self._asked.pop()
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[uid] = float("inf") if _is_login(uid) else self._clock.now_s() + UNKNOWN_S
        finally:
            self._looking_up.release()

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError:
            return 0, 0, 0
        return found.st_ino, found.st_mtime_ns, found.st_size


def _is_login(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return False
    return True


def _read(path: Path, *, with_names: bool) -> list[_Range]:
    """Returns the ranges in order. A line of root's, or of an unknown login, makes nobody responsible for its ids.

    `with_names`: also lines that name their login, which blocks on the user database.
    """
    ranges: list[_Range] = []
    try:
        with path.open(errors="replace") as file:
            lines = file.read(FILE_BYTES_MAX).splitlines()
    except OSError:
        return []
    for line in lines:
        with suppress(ValueError, KeyError):
            name, first, count = line.strip().split(":")
            if not (name.isdecimal() or with_names):
                continue
            owner = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
            if owner:
                ranges.append((int(first), int(first) + int(count) - 1, owner))
    return sorted(ranges)
