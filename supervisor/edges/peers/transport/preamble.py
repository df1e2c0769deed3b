"""What do node and leader exchange before TLS, so that new nodes and strangers cost the leader little?

A node sends one byte, its kind: it may be redirected, it connects here, or it is a relay. If the job has a token, a
proof follows that the node knows it. The leader closes a connection that does not prove it, and spends no more on it.
In a job with certificates alone, the leader tells a key to each node that it has admitted, for its next connections.
A leader that redirects a node answers with the address of a relay, or tells it to return later, and closes. None of
this is secret, and a leader's answer is not authenticated: a forged address leads to a process without certificate or
token of the job, and the node comes back.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from contextlib import suppress
from functools import lru_cache
from typing import cast

MAY_BE_REDIRECTED = b"r"
CONNECTS_HERE = b"d"
IS_RELAY = b"t"
READ_BYTES = 65536
PORT_MAX = 65535
_KINDS = (MAY_BE_REDIRECTED, CONNECTS_HERE, IS_RELAY)
_PROVEN = {kind.upper(): kind for kind in _KINDS}  # kinds that a proof follows
NONCE_BYTES = PROOF_BYTES = 16
NONCES_MAX = 16_384  # that a leader remembers
REDIRECTED, REFUSED = b"\xff", b"\xfe"  # TLS begins with 0x16, a frame with 0
WHY_BYTES_MAX = 1000

Place = tuple[str, int]  # an IP address and a port
AGAIN: Place = "", 0  # return here a little later (core/cluster/relay_assignment.py: LATER)


def key_of(token: bytes) -> bytes:
    """Returns the key of the proofs; b"" without a token."""
    # The label is on the wire, so it keeps an older name.
    return hmac.digest(token, b"holdfast cluster door 1", "sha256") if token else b""


def fresh_key() -> bytes:
    """Returns the key of a leader without a token, which tells it to its nodes once they are connected."""
    return secrets.token_bytes(32)


def _proof(key: bytes, kind: bytes, nonce: bytes) -> bytes:
    return hashlib.blake2s(kind + nonce, key=key, digest_size=PROOF_BYTES).digest()


class Preamble:
    """The node's side: `says` is sent first of all, and `read` reads the first bytes of the answer."""

    def __init__(self, kind: bytes, key: bytes = b"") -> None:
        self.says = kind
        if key:
            nonce = secrets.token_bytes(NONCE_BYTES)
            self.says = kind.upper() + nonce + _proof(key, kind, nonce)
        self.redirected_to: Place | None = None
        self.refusal = ""

    def read(self, data: bytes) -> str:
        """Returns why the connection ends here; "": it continues."""
        if data.startswith(REFUSED):
            self.refusal = data[1 : 1 + WHY_BYTES_MAX].decode(errors="replace")
            self.refusal = "".join(filter(str.isprintable, self.refusal))  # a stranger may have written it
            return f"it refuses this node: {self.refusal}"
        if not data.startswith(REDIRECTED):
            return ""
        try:
            host, port = cast("Place", json.loads(data[1:]))
            if not 0 <= port <= PORT_MAX:
                raise ValueError(port)
            self.redirected_to = str(host), int(port)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return "it redirects this node, and does not say where"
        return f"it redirects this node to {host}, port {port}"


class Proofs:
    """The leader's side: checks proofs. Each is valid once, so that it is of no use to somebody who has seen it."""

    def __init__(self, key: bytes) -> None:
        """`key` b"": nobody has one."""
        self._key = key
        self._seen: dict[bytes, None] = {}  # oldest first

    def hold(self, first: bytes) -> bool:
        """Returns whether these bytes of `read_first` contain a proof that was not used yet."""
        nonce, proof = first[1 : 1 + NONCE_BYTES], first[1 + NONCE_BYTES :]
        if not self._key or len(proof) != PROOF_BYTES or nonce in self._seen:
            return False
        if not hmac.compare_digest(proof, _proof(self._key, kind_of(first), nonce)):
            return False
        self._seen[nonce] = None
        if len(self._seen) > NONCES_MAX:
            del self._seen[next(iter(self._seen))]
        return True


def kind_of(first: bytes) -> bytes:
    """Returns the kind; b"": there is none, so this is not a node."""
    return first[:1] if first[:1] in _KINDS else _PROVEN.get(first[:1], b"")


def read_first(sock: socket.socket, first: bytearray) -> bool:
    """Adds to `first` what has come of the kind and its proof, and returns whether that is all of both.

    What follows them is left in the socket. Raises OSError if nothing more will come.
    """
    while (missing := _length(first) - len(first)) > 0:
        try:
            data = sock.recv(missing)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionResetError("the other side has closed the connection")
        first += data
    return True


def _length(first: bytearray) -> int:
    return 1 + NONCE_BYTES + PROOF_BYTES if bytes(first[:1]) in _PROVEN else 1


def redirect(sock: socket.socket, place: Place) -> None:
    _answer(sock, _place(place))


def refuse(sock: socket.socket, why: str) -> None:
    _answer(sock, REFUSED + why.encode()[:WHY_BYTES_MAX])


def _answer(sock: socket.socket, answer: bytes) -> None:
    """Sends the answer and closes the connection."""
    with sock, suppress(OSError):
        with suppress(BlockingIOError):
            sock.recv(READ_BYTES)  # if data stays unread, the kernel resets the connection
        sock.send(answer)


@lru_cache  # thousands of nodes are redirected to a few relays
def _place(place: Place) -> bytes:
    return REDIRECTED + json.dumps(place).encode()
