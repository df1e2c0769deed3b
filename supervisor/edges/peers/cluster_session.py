"""How do two nodes prove who they are, and how is no message between them lost, doubled, changed or replayed?

Sans-I/O. Both sides know the job's token. Each proves it by an HMAC over the other's fresh nonce, and from both nonces
the keys of this one connection follow. Every sealed message carries a MAC over a counter that is not sent, so that it
is good once, in its place. What must arrive is numbered and kept until the other side says that it has it: after a lost
connection the next one begins with what is missing. Only the death of a process breaks that chain.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Iterable

import msgspec

NONCE_BYTES = 32
MAC_BYTES = 16
KEPT_BYTES_MAX = 16 * 1024 * 1024  # that one peer has not confirmed; more, and it is given up
KEPT_BYTES_EACH = 64  # that a message takes beside its payload

_COUNT = struct.Struct(">Q")  # of the messages of one direction; not sent
_COUNTED = struct.Struct(">QQQ")  # the same, and the header
_HEADER = struct.Struct(">QQ")  # number (0: needs no confirmation), the newest number received
OVERHEAD_BYTES = MAC_BYTES + _HEADER.size
COUNT_BYTES = _COUNT.size
_pack_count, _pack_counted, _read_header = _COUNT.pack, _COUNTED.pack, _HEADER.unpack_from
_are_same = hmac.compare_digest


class SessionError(Exception):
    """Raised where the other side can't be trusted or is beyond help; the connection ends."""


class Keys(msgspec.Struct, frozen=True):
    """Of one connection: one for each direction, so that nothing can be sent back to its sender."""

    to_leader: bytes
    to_node: bytes


def fresh_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def proof(token: bytes, side: str, *parts: bytes) -> bytes:
    """That `side` ("node" or "leader") knows the token, bound to all the parts."""
    return _mac(token, b"holdfast cluster proof 1", side.encode(), *parts)


def is_proof(given: bytes, token: bytes, side: str, *parts: bytes) -> bool:
    return hmac.compare_digest(given, proof(token, side, *parts))


def derive_keys(token: bytes, leader_nonce: bytes, node_nonce: bytes) -> Keys:
    return Keys(
        to_leader=_mac(token, b"holdfast cluster key 1", b"to leader", leader_nonce, node_nonce),
        to_node=_mac(token, b"holdfast cluster key 1", b"to node", leader_nonce, node_nonce),
    )


def _mac(key: bytes, *parts: bytes) -> bytes:
    """Lengths are part of it: no two lists of parts look alike."""
    return hmac.digest(key, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")


class Seal:
    """One direction of one connection. Both sides count the messages. A leader does this for each heartbeat.

    Keyed BLAKE2s: a MAC in one pass, which costs a quarter of HMAC-SHA256 here.
    """

    __slots__ = ("_count", "_keyed")

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2s(key=key, digest_size=MAC_BYTES)
        self._count = 0

    def close(self, payload: bytes, *, number: int, received: int) -> bytes:
        self._count = count = self._count + 1
        counted = _pack_counted(count, number, received) + payload
        mac = self._keyed.copy()
        mac.update(counted)
        return mac.digest() + counted[COUNT_BYTES:]

    def open(self, sealed: bytes) -> tuple[bytes, int, int]:
        """Payload, number, and the newest number that the sender has received. Raises SessionError."""
        self._count = count = self._count + 1
        mac = self._keyed.copy()
        mac.update(_pack_count(count) + sealed[MAC_BYTES:])
        if len(sealed) < OVERHEAD_BYTES or not _are_same(sealed[:MAC_BYTES], mac.digest()):
            raise SessionError("a message is not from the other side as it was sent")
        number, received = _read_header(sealed, MAC_BYTES)
        return sealed[OVERHEAD_BYTES:], number, received


class Outbox:
    """What the other side has not confirmed yet, in order. Outlives connections."""

    __slots__ = ("_kept", "_kept_bytes", "_last", "_sent")

    def __init__(self, last: int = 0, kept: Iterable[bytes] = ()) -> None:
        """`last` and `kept`: as the outbox of a process before this one stood."""
        self._kept = list(kept)  # the last of them is message `_last`
        self._kept_bytes = sum(map(len, self._kept)) + len(self._kept) * KEPT_BYTES_EACH
        self._last = last
        self._sent = self._confirmed  # the last message that has gone out on the connection of now

    def put(self, payload: bytes) -> None:
        """Raises SessionError once too much is unconfirmed."""
        if self._kept_bytes + len(payload) + KEPT_BYTES_EACH > KEPT_BYTES_MAX:
            raise SessionError(f"more than {KEPT_BYTES_MAX >> 20} MiB wait for it")
        self._last += 1
        self._kept.append(payload)
        self._kept_bytes += len(payload) + KEPT_BYTES_EACH

    def confirm(self, received: int) -> bool:
        """The other side has everything up to that number: whether that is news.

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
        """What is not confirmed goes out once more."""
        self._sent = self._confirmed

    def take_unsent(self, bytes_max: int = KEPT_BYTES_MAX) -> list[tuple[int, bytes]]:
        """What has not gone out on this connection, in order, at least one message; from now on it has."""
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
        """The number of the last message."""
        return self._last

    @property
    def unconfirmed(self) -> tuple[bytes, ...]:
        return tuple(self._kept)


class Arrivals:
    """Which numbers have come. Outlives connections."""

    __slots__ = ("received",)

    def __init__(self, received: int = 0) -> None:
        self.received = received

    def is_new(self, number: int) -> bool:
        """Whether this message is to be taken; one that came before is not. Raises SessionError for a gap."""
        if number == 0:
            return True
        if number <= self.received:
            return False
        if number != self.received + 1:
            raise SessionError(f"message {number} came after {self.received}: what is between them is lost")
        self.received = number
        return True
