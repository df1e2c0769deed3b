"""What is said at a leader's door, before TLS and all else, so that a newcomer is sent on at little cost?

A node says one letter: that it may be sent on, that it wants in here, or that it is a relay. A leader that sends it on
answers with the address of a relay and closes, or that it is to come again. None of it is secret or proved: a forged
answer leads to somebody who has no certificate and no token of the job, and the node comes back.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, cast

MAY_BE_SENT_ON = b"r"
WANTS_IN = b"d"
IS_RELAY = b"t"
READ_BYTES = 65536
_LETTERS = (MAY_BE_SENT_ON, WANTS_IN, IS_RELAY)  # TLS begins with 0x16, a frame with 0
SENT_ON = b"\xff"  # as neither begins

Place = tuple[str, int]  # an IP address and a port
AGAIN: Place = "", 0  # here, a little later (core/cluster/relays.py: LATER)


class Passed(NamedTuple):
    rest: bytes  # what comes after it
    letter: bytes = b""
    answer: bytes = b""
    why: str = ""  # the connection ends here; "": it goes on


class Door:
    """One side of it."""

    says = b""  # at once
    is_first = False  # nothing else is said before the other side has spoken

    def read(self, data: bytes) -> Passed:
        """The first bytes of the other side."""
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
    """`choose` says where a node is sent on, if at all; None: this leader never sends anybody on."""

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
        """The same before anything is made for the connection, where the node has spoken already."""
        if self._choose is None:
            return False
        try:
            if sock.recv(1, socket.MSG_PEEK) != MAY_BE_SENT_ON:
                return False
        except OSError:
            return False  # It has said nothing yet, or is gone.
        place = self._choose()
        if place is None:
            self._choose = lambda: None  # It is let in.
            return False
        with sock, suppress(OSError):
            sock.recv(READ_BYTES)  # What is not read would have the kernel break the connection.
            sock.send(_answer(place))
        return True


def _answer(place: Place) -> bytes:
    return SENT_ON + json.dumps(place).encode()
