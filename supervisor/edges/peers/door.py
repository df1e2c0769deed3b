"""What is exchanged at a leader's door, before TLS and all else, so that redirecting a newcomer costs little?

A node sends one letter: it may be redirected, it wants to connect here, or it is a relay. A leader that redirects it
answers with the address of a relay, or tells it to return later, and closes. None of this is secret or authenticated: a
forged answer leads to a process without certificate or token of the job, and the node comes back.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, cast

MAY_BE_SENT_ON = b"r"
WANTS_IN = b"d"
IS_RELAY = b"t"
READ_BYTES = 65536
_LETTERS = (MAY_BE_SENT_ON, WANTS_IN, IS_RELAY)  # TLS begins with 0x16, a frame with 0
SENT_ON = b"\xff"  # neither begins with this byte

Place = tuple[str, int]  # an IP address and a port
AGAIN: Place = "", 0  # return here a little later (core/cluster/relays.py: LATER)


class Passed(NamedTuple):
    rest: bytes  # the data after it
    letter: bytes = b""
    answer: bytes = b""
    why: str = ""  # why the connection ends here; "": it continues


class Door:
    """One side of the door."""

    says = b""  # sent at once
    is_first = False  # nothing else is sent before the other side has answered

    def read(self, data: bytes) -> Passed:
        """Reads the first bytes of the other side."""
        return Passed(data)


class NodesDoor(Door):
    def __init__(self, letter: bytes) -> None:
        self.says = letter
        self.sent_on: Place | None = None

    def read(self, data: bytes) -> Passed:
        if not data.startswith(SENT_ON):
            return Passed(data)
        try:
            host, port = cast("Place", json.loads(data[1:]))
            self.sent_on = str(host), int(port)
        except (ValueError, TypeError):
            return Passed(b"", why="it sends this node on, and does not say where")
        return Passed(b"", why=f"it sends this node on to {host}, port {port}")


class LeadersDoor(Door):
    """The leader's side. `choose` returns where a node is redirected, if at all; None: never redirect."""

    def __init__(self, choose: Callable[[], Place | None] | None) -> None:
        self.is_first = choose is not None
        self._choose = choose

    def read(self, data: bytes) -> Passed:
        letter = data[:1] if data[:1] in _LETTERS else b""
        place = self._choose() if letter == MAY_BE_SENT_ON and self._choose is not None else None
        if place is None:
            return Passed(data[len(letter) :], letter)
        return Passed(b"", letter, _answer(place), f"it is sent on to {place[0]}")

    def sends_on(self, sock: socket.socket) -> bool:
        """Redirects a node that has sent its letter already, before anything is created for the connection."""
        if self._choose is None:
            return False
        try:
            if sock.recv(1, socket.MSG_PEEK) != MAY_BE_SENT_ON:
                return False
        except OSError:
            return False  # It has sent nothing yet, or is gone.
        place = self._choose()
        if place is None:
            self._choose = lambda: None  # it stays here
            return False
        with sock, suppress(OSError):
            sock.recv(READ_BYTES)  # if data stays unread, the kernel resets the connection
            sock.send(_answer(place))
        return True


@lru_cache  # thousands of nodes are sent on to a few relays
def _answer(place: Place) -> bytes:
    return SENT_ON + json.dumps(place).encode()
