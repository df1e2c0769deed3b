"""How do the processes of the log server prove that they know the job's token, and seal their messages?"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

import msgspec

from supervisor.edges.peers.cluster_session import SessionError

NONCE_BYTES = 32
MAC_BYTES = 16

_COUNT = struct.Struct(">Q")  # the messages of one direction; not sent
_COUNTED = struct.Struct(">QQQ")  # the same with the header
_HEADER = struct.Struct(">QQ")
OVERHEAD_BYTES = MAC_BYTES + _HEADER.size
COUNT_BYTES = _COUNT.size
_pack_count, _pack_counted, _read_header = _COUNT.pack, _COUNTED.pack, _HEADER.unpack_from
_are_same = hmac.compare_digest


class Keys(msgspec.Struct, frozen=True):
    """The keys of one connection: one for each direction, so that nothing can be reflected to its sender."""

    to_leader: bytes
    to_node: bytes


def fresh_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def proof(token: bytes, side: str, *parts: bytes) -> bytes:
    """Returns the proof that `side` ("node" or "leader") knows the token, bound to all parts."""
    return _mac(token, b"holdfast cluster proof 1", side.encode(), *parts)


def is_proof(given: bytes, token: bytes, side: str, *parts: bytes) -> bool:
    return hmac.compare_digest(given, proof(token, side, *parts))


def derive_keys(token: bytes, leader_nonce: bytes, node_nonce: bytes) -> Keys:
    return Keys(
        to_leader=_mac(token, b"holdfast cluster key 1", b"to leader", leader_nonce, node_nonce),
        to_node=_mac(token, b"holdfast cluster key 1", b"to node", leader_nonce, node_nonce),
    )


def _mac(key: bytes, *parts: bytes) -> bytes:
    """Returns a MAC that covers the lengths, too: two lists of parts never look alike."""
    return hmac.digest(key, b"".join([len(part).to_bytes(4, "big") + part for part in parts]), "sha256")


class Seal:
    """Seals one direction of one connection. Both sides count the messages. A leader does this for each heartbeat.

    Uses keyed BLAKE2s, a MAC in one pass at a quarter of the cost of HMAC-SHA256 here.
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
        """Returns payload, number, and the newest number that the sender has received. Raises SessionError."""
        self._count = count = self._count + 1
        mac = self._keyed.copy()
        mac.update(_pack_count(count) + sealed[MAC_BYTES:])
        if len(sealed) < OVERHEAD_BYTES or not _are_same(sealed[:MAC_BYTES], mac.digest()):
            raise SessionError("a message is not from the other side as it was sent")
        number, received = _read_header(sealed, MAC_BYTES)
        return sealed[OVERHEAD_BYTES:], number, received
