"""What do root's process and the supervisor of one user say to each other?

One datagram each way per word, over a socket to which root alone can connect. Root believes nothing of the answers but
that the supervisor is there and took a connection: the user may have changed that process.
"""

from __future__ import annotations

import msgspec

WORD_BYTES_MAX = 4096


class Take(msgspec.Struct, frozen=True, tag="take"):
    """A client's connection comes with this word. Root to user."""

    number: int


class Cordon(msgspec.Struct, frozen=True, tag="cordon"):
    """ "" : the node takes jobs. Both ways: the supervisor of root's own jobs says what an operator has asked it."""

    reason: str


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End, since nobody needs you. Root to user."""


class End(msgspec.Struct, frozen=True, tag="end"):
    """End all jobs, then yourself. Root to user."""


class MakeRoom(msgspec.Struct, frozen=True, tag="make_room"):
    """Leave your jobs to a supervisor that is started next. Root to user."""


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """The connection of that number is served. User to root."""

    number: int


class Idle(msgspec.Struct, frozen=True, tag="idle"):
    """There is no job and no client. `taken`: the last connection that was taken. User to root."""

    taken: int


ToUser = Take | Cordon | Leave | End | MakeRoom
ToRoot = Taken | Idle | Cordon

_to_user = msgspec.json.Decoder(ToUser)
_to_root = msgspec.json.Decoder(ToRoot)


def encode(word: ToUser | ToRoot) -> bytes:
    return msgspec.json.encode(word)


def read_by_user(data: bytes) -> ToUser | None:
    """None: a word of a later version."""
    try:
        return _to_user.decode(data)
    except msgspec.DecodeError:
        return None


def read_by_root(data: bytes) -> ToRoot | None:
    """None: nothing that means anything here."""
    try:
        return _to_root.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
