"""Which login do a user id's connections and supervisors count for?

useradd grants each login 65,536 subordinate user ids, with which its user may run processes in a user namespace. Bounds
that counted each of these ids for itself would be no bounds.
"""

from __future__ import annotations

import math
import os
import pwd
import threading
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from supervisor.edges.machine.clock import Clock

SUBORDINATE = Path("/etc/subuid")
FILE_BYTES_MAX = 8 * 1024 * 1024
OF_ONE_MAX = 64  # ids of one owner's ranges that wait to be looked up, or that have no login
UNKNOWN_S = 60.0  # until a name or an id without a login is looked up again

_Line = tuple[str, int, int]  # login, first user id, last one
_Range = tuple[int, int, int]  # first user id, last one, the login's own


class Logins:
    """The ranges of /etc/subuid. What only the user database knows is looked up in a thread: it may be on a server.

    That is whose the names in that file are, and whether an id in a range is a login itself: a directory service may
    count from 100,000 on. Until that is known, a name counts as a login of its own, with a negative id, and an id in a
    range counts for the range's owner.
    """

    def __init__(self, path: Path = SUBORDINATE) -> None:
        self._path = path
        self._clock = Clock()
        self._looking_up = threading.Lock()
        self._read_as: tuple[int, int, int] | None = None  # None: its names are not looked up yet
        self._again_s = math.inf  # when names without a login are looked up again
        self._owners = {"root": 0}
        self._ranges = _ranges(_lines(path), self._owners)
        self._logins = set[int]()  # ids in ranges that are logins
        self._lock = threading.Lock()  # for the two below
        self._until_s: dict[int, dict[int, float]] = {}  # by owner: until when an id counts as no login
        self._waiting: dict[int, list[int]] = {}  # by owner: ids to look up
        self._look_up_soon()

    def of(self, uid: int) -> int:
        """Returns the user id of the login that counts for this one. Never blocks."""
        owner = self._owner(uid)
        is_itself = owner == uid or uid in self._logins
        if not is_itself:
            self._ask(uid, owner)
        if self._waiting or self._stamp() != self._read_as or self._clock.now_s() >= self._again_s:
            self._look_up_soon()
        return uid if is_itself else owner

    def count(self, uid: int, uids: Sequence[int], least: int) -> int:
        """Returns how many of `uids` count for the login of `uid`; for certain if that may be `least` or more.

        Only then, it blocks on the user database.
        """
        whose = {uid, self._owner(uid)}
        near = Counter(each for each in uids if not whose.isdisjoint((each, self._owner(each))))
        if near.total() < least:
            return near.total()
        login = self._certain(uid)
        return sum(times for each, times in near.items() if self._certain(each) == login)

    def _certain(self, uid: int) -> int:
        """Returns the login, also of an id that `of` had no turn to look up. Blocks on the user database."""
        owner = self._owner(uid)
        if owner != uid and uid not in self._logins:
            if not _is_login(uid):
                return owner
            with self._lock:
                self._logins.add(uid)
        return uid

    def _owner(self, uid: int) -> int:
        """Returns the owner of the range that the id is in; the id itself if it is in none."""
        ranges = self._ranges
        at = bisect_right(ranges, uid, key=lambda each: each[0]) - 1
        return ranges[at][2] if at >= 0 and uid <= ranges[at][1] else uid

    def _ask(self, uid: int, owner: int) -> None:
        """Lets the id be looked up, unless too many of this owner are: who has a range may come with any id in it."""
        now_s = self._clock.now_s()
        with self._lock:
            until_s = self._until_s.setdefault(owner, {})
            if uid in self._logins or until_s.get(uid, 0.0) > now_s:
                return
            if len(until_s) >= OF_ONE_MAX:
                until_s = self._until_s[owner] = {each: end_s for each, end_s in until_s.items() if end_s > now_s}
            if len(until_s) < OF_ONE_MAX:
                until_s[uid] = math.inf
                self._waiting.setdefault(owner, []).append(uid)

    def _look_up_soon(self) -> None:
        if self._looking_up.acquire(blocking=False):
            try:
                threading.Thread(target=self._look_up, name="logins", daemon=True).start()
            except (RuntimeError, MemoryError):  # No thread: the next call tries again.
                self._looking_up.release()

    def _look_up(self) -> None:
        try:
            self._read_if_due()
            while asked := self._next():
                uid, owner = asked
                is_login = _is_login(uid)
                with self._lock:
                    if is_login:
                        self._logins.add(uid)
                        self._until_s.get(owner, {}).pop(uid, None)
                    elif uid in self._until_s.get(owner, {}):
                        self._until_s[owner][uid] = self._clock.now_s() + UNKNOWN_S
                self._read_if_due()
        finally:
            self._looking_up.release()

    def _next(self) -> tuple[int, int] | None:
        """Returns an id to look up, and its owner; each owner has its turn."""
        with self._lock:
            for owner in self._waiting:
                uid, *others = self._waiting.pop(owner)
                if others:
                    self._waiting[owner] = others
                return uid, owner
        return None

    def _read_if_due(self) -> None:
        """Reads a changed file. Else looks up the names that had no login, if it is time."""
        stamp = self._stamp()
        if stamp != self._read_as:
            self._read({"root": 0})
            self._read_as = stamp
        elif self._clock.now_s() >= self._again_s:
            self._read(dict(self._owners))

    def _read(self, owners: dict[str, int]) -> None:
        """Reads the file, and looks up the names that are not in `owners`. Blocks on the user database."""
        lines = _lines(self._path)
        self._use(_ranges(lines, self._owners))  # meanwhile
        names = {name for name, _, _ in lines if not name.isdecimal()}
        for name in names - owners.keys():
            with suppress(KeyError, ValueError):
                owners[name] = pwd.getpwnam(name).pw_uid
        self._owners = owners
        self._again_s = math.inf if names <= owners.keys() else self._clock.now_s() + UNKNOWN_S
        self._use(_ranges(lines, owners))

    def _use(self, ranges: list[_Range]) -> None:
        """Ids in ranges of other owners are asked for again."""
        if ranges != self._ranges:
            with self._lock:
                self._ranges, self._until_s, self._waiting = ranges, {}, {}

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


def _lines(path: Path) -> list[_Line]:
    lines: list[_Line] = []
    with suppress(OSError), path.open(errors="replace") as file:
        for line in file.read(FILE_BYTES_MAX).splitlines():
            with suppress(ValueError):
                name, first, count = line.strip().split(":")
                lines.append((name, int(first), int(first) + int(count) - 1))
    return lines


def _ranges(lines: list[_Line], owners: dict[str, int]) -> list[_Range]:
    """Returns the ranges in order. A line of root's makes nobody responsible for its ids."""
    ranges: list[_Range] = []
    for name, first, last in lines:
        owner = int(name) if name.isdecimal() else owners.get(name, -1 - zlib.crc32(name.encode()))
        if owner:
            ranges.append((first, last, owner))
    return sorted(ranges)
