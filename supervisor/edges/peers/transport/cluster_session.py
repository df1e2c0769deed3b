"""Why does no message between two nodes get lost or doubled, however often their connection breaks?

Sans-I/O. A message that must arrive has a number and is kept until the other side confirms it: after a lost connection,
the next one starts with the missing messages. Only the death of a process breaks that chain. TLS keeps a message secret
and unchanged (cluster_tls.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

KEPT_BYTES_MAX = 16 * 1024 * 1024  # unconfirmed by one peer; more, and the peer is abandoned
KEPT_BYTES_EACH = 64  # overhead of a message beside its payload

_NUMBERS = struct.Struct(">QQ")  # number (0: needs no confirmation), the newest number received
NUMBERS_BYTES = _NUMBERS.size
_pack_numbers, _read_numbers = _NUMBERS.pack, _NUMBERS.unpack_from


class SessionError(Exception):
    """Raised if the other side can't be trusted or helped; the connection ends."""


def numbered(payload: bytes, *, number: int, received: int) -> bytes:
    """Returns a message for the line."""
    return _pack_numbers(number, received) + payload


def read_numbered(message: bytes) -> tuple[bytes, int, int]:
    """Returns payload, number, and the newest number that the sender has received. Raises SessionError."""
    if len(message) < NUMBERS_BYTES:
        raise SessionError("a message is too short")
    number, received = _read_numbers(message)
    return message[NUMBERS_BYTES:], number, received


class Outbox:
    """Unconfirmed messages in order. Outlives connections."""

    __slots__ = ("_kept", "_kept_bytes", "_last", "_sent")

    def __init__(self, last: int = 0, kept: Iterable[bytes] = ()) -> None:
        """`last` and `kept`: the state of an earlier process's outbox."""
        self._kept = list(kept)  # its last item is message `_last`
        self._kept_bytes = sum(map(len, self._kept)) + len(self._kept) * KEPT_BYTES_EACH
        self._last = last
        self._sent = self._confirmed  # the last message sent over the current connection

    def put(self, payload: bytes) -> None:
        """Adds a message. Raises SessionError once too much is unconfirmed."""
        if self._kept_bytes + len(payload) + KEPT_BYTES_EACH > KEPT_BYTES_MAX:
            raise SessionError(f"more than {KEPT_BYTES_MAX >> 20} MiB wait for it")
        self._last += 1
        self._kept.append(payload)
        self._kept_bytes += len(payload) + KEPT_BYTES_EACH

    def confirm(self, received: int) -> bool:
        """Confirms all messages up to that number; returns whether any of them is newly confirmed.

        Raises SessionError for a number that was never sent.
        """
        count = received - (self._last - len(self._kept))
        if count <= 0:
            return False
        if received > self._last:
            raise SessionError(f"it confirms message {received}, but {self._last} was the last one sent")
        self._kept_bytes -= sum(map(len, self._kept[:count])) + count * KEPT_BYTES_EACH
        del self._kept[:count]
        self._sent = max(self._sent, received)
        return True

    def begin_connection(self) -> None:
        """Marks all unconfirmed messages as unsent."""
        self._sent = self._confirmed

    def take_unsent(self, bytes_max: int = KEPT_BYTES_MAX) -> list[tuple[int, bytes]]:
        """Returns messages not yet sent over this connection, in order, at least one; marks them as sent."""
        taken: list[tuple[int, bytes]] = []
        while self._sent < self._last and bytes_max > 0:
            payload = self._kept[self._sent - self._confirmed]
            self._sent += 1
            taken.append((self._sent, payload))
            bytes_max -= len(payload)
        return taken

    @property
    def _confirmed(self) -> int:
        return self._last - len(self._kept)

    @property
    def is_empty(self) -> bool:
        return not self._kept

    @property
    def has_unsent(self) -> bool:
        return self._sent < self._last

    @property
    def last(self) -> int:
        """Returns the number of the last message."""
        return self._last

    @property
    def unconfirmed(self) -> tuple[bytes, ...]:
        return tuple(self._kept)


class Arrivals:
    """The numbers that have arrived. Outlives connections."""

    __slots__ = ("received",)

    def __init__(self, received: int = 0) -> None:
        self.received = received

    def is_new(self, number: int) -> bool:
        """Returns whether this message is new and must be handled. Raises SessionError for a gap."""
        if number == 0:
            return True
        if number <= self.received:
            return False
        if number != self.received + 1:
            raise SessionError(f"message {number} came after {self.received}: what is between them is lost")
        self.received = number
        return True
