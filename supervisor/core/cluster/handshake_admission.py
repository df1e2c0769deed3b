"""Which connections to a leader begin their handshakes, and which one is closed if too many wait?

A connection waits until its first bytes have come, and then for a place. Members of the job have places of their own. A
source (an address) gets another place only while more are free than it has: so no source has all of them, and one alone
has half. If too many connections wait, the source with the most of them loses one: the one that has been silent for the
longest time, since a node speaks at once. If none of them is silent, it loses the one that came last.
"""

from __future__ import annotations

import msgspec

PLACES = 128  # of members, and as many of the others


class _Lane:
    """The places of members, or those of the others."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._held: dict[str, int] = {}
        self._queues: dict[str, dict[int, None]] = {}  # by source; the next source in turn comes first

    def queue(self, key: int, source: str) -> None:
        self._queues.setdefault(source, {})[key] = None

    def unqueue(self, key: int, source: str) -> None:
        queue = self._queues[source]
        del queue[key]
        if not queue:
            del self._queues[source]

    def next(self) -> int | None:
        """Gives a place to the next connection in turn."""
        for source, queue in self._queues.items():
            if self._held.get(source, 0) < self._free:
                key = next(iter(queue))
                del self._queues[source], queue[key]
                if queue:
                    self._queues[source] = queue  # It is the last one now.
                self._free -= 1
                self._held[source] = self._held.get(source, 0) + 1
                return key
        return None

    def give_back(self, source: str) -> None:
        self._free += 1
        self._held[source] -= 1
        if not self._held[source]:
            del self._held[source]


class _Connection(msgspec.Struct):
    source: str
    lane: _Lane | None = None  # None: it has said nothing yet
    has_place: bool = False


class Admission:
    """The connections of one server. Only its methods change it. A connection is a number that the caller chose."""

    def __init__(self, *, waiting_max: int, places: int = PLACES) -> None:
        self._waiting_max = waiting_max
        self._waiting = 0
        self._connections: dict[int, _Connection] = {}
        self._closable: dict[str, dict[int, None]] = {}  # by source, in the order of arrival: no members
        self._members, self._others = _Lane(places), _Lane(places)

    @property
    def has_room(self) -> bool:
        """Returns whether another connection may be accepted, perhaps in the place of one that waits."""
        return self._waiting < self._waiting_max or bool(self._closable)

    def arrive(self, key: int, source: str) -> None:
        self._connections[key] = _Connection(source)
        self._closable.setdefault(source, {})[key] = None
        self._waiting += 1

    def surplus(self) -> int | None:
        """Returns a connection to close, because too many wait. The caller closes it and calls `leave`."""
        return self.least() if self._waiting > self._waiting_max else None

    def least(self) -> int | None:
        """Returns the connection that is closed first; None: all that wait are members."""
        if not self._closable:
            return None
        keys = max(self._closable.values(), key=len)
        silent = (key for key in keys if self._connections[key].lane is None)
        return next(silent, next(reversed(keys)))

    def speak(self, key: int, *, is_member: bool) -> None:
        """Notes that the first bytes of a connection have come."""
        connection = self._connections[key]
        connection.lane = self._members if is_member else self._others
        connection.lane.queue(key, connection.source)
        if is_member:
            self._forget_closable(key, connection.source)

    def admit(self) -> int | None:
        """Gives a place to a connection that waits for one, and returns it."""
        key = self._members.next()
        if key is None:
            key = self._others.next()
            if key is None:
                return None
            self._forget_closable(key, self._connections[key].source)
        self._connections[key].has_place = True
        self._waiting -= 1
        return key

    def leave(self, key: int) -> None:
        """Forgets a connection: it has ended, or needs its place no longer."""
        connection = self._connections.pop(key)
        if connection.has_place:
            assert connection.lane is not None
            connection.lane.give_back(connection.source)
            return
        self._waiting -= 1
        if connection.lane is not None:
            connection.lane.unqueue(key, connection.source)
        if connection.lane is not self._members:
            self._forget_closable(key, connection.source)

    def _forget_closable(self, key: int, source: str) -> None:
        keys = self._closable[source]
        del keys[key]
        if not keys:
            del self._closable[source]
