"""Which connection to an HTTP interface ends if too many are open, and whose connection is it?

Sources share the places: a source is a user of this machine, or the address of another machine. If all places are
taken, the source with most connections gives one up: the one that has waited for its client for longest. If none of
them waits, the newest of another source ends; a source does not end its own, so its new connection is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from supervisor.edges.machine.processes.tcp_peer_user import Address, user_at

Source = int | str


def as_it_is(uid: int) -> int:
    return uid


class Place:
    """One open connection."""

    def __init__(self, source: Source, end: Callable[[], None]) -> None:
        self.source = source
        self.end = end


class Places:
    """The connections of one server. The caller says when a connection waits for its client, and when it has ended."""

    def __init__(self, most: int, login_of: Callable[[int], int] = as_it_is) -> None:
        """`login_of`: see Logins.of. A login and its subordinate user ids are one source."""
        self._most = most
        self._login_of = login_of
        self._waiting: dict[Place, None] = {}  # the one that has waited longest comes first
        self._answered: dict[Place, None] = {}
        self._of_source: Counter[Source] = Counter()

    def source(self, peer: Address, own: Address) -> Source:
        """Returns to whom a TCP connection counts. `peer` and `own` are both ends, as our socket has them."""
        uid = user_at(peer, own)
        return peer[0] if uid is None else self._login_of(uid)

    def enter(self, source: Source, end: Callable[[], None]) -> Place | None:
        """Gives a new connection a place, in which it waits. Returns None if no other one makes room."""
        if len(self._waiting) + len(self._answered) >= self._most and not self._made_room(source):
            return None
        place = Place(source, end)
        self._of_source[source] += 1
        self._waiting[place] = None
        return place

    def answer(self, place: Place) -> None:
        """Notes that a request of the connection is being answered."""
        if self._waiting.pop(place, place) is None:
            self._answered[place] = None

    def wait(self, place: Place) -> None:
        """Notes that the connection waits for its client from now on."""
        if self._answered.pop(place, place) is None:
            self._waiting[place] = None

    def leave(self, place: Place) -> None:
        """Notes that the connection has ended; it may have lost its place before."""
        if self._waiting.pop(place, place) is None or self._answered.pop(place, place) is None:
            self._of_source[place.source] -= 1
            if not self._of_source[place.source]:
                del self._of_source[place.source]

    def _made_room(self, source: Source) -> bool:
        counts = {**self._of_source, source: self._of_source[source] + 1}
        most = max(counts.values())
        waiting = (each for each in self._waiting if counts[each.source] == most)
        others = (each for each in reversed(self._answered) if counts[each.source] == most and each.source != source)
        for place in (*waiting, *others):
            self.leave(place)
            place.end()
            return True
        return False
