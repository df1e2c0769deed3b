"""What do root's process and the supervisor of one user send each other?

One datagram per message, over a socket to which only root can connect. Root trusts no answer beyond the fact that the
supervisor is there and took a connection: the user may have changed that process.
"""

from __future__ import annotations

import msgspec

MESSAGE_BYTES_MAX = 4096


class Take(msgspec.Struct, frozen=True, tag="take"):
    """A client's connection comes with this message. Root to user."""

    number: int


class Cordon(msgspec.Struct, frozen=True, tag="cordon"):
    """Cordons the node; "": it takes jobs. Both ways: the supervisor of root's jobs reports an operator's request.

    It repeats the last one on a new connection, where it counts more than what root's new process has kept.
    """

    reason: str


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End, because nobody needs you. Root to user."""


class End(msgspec.Struct, frozen=True, tag="end"):
    """End all jobs, then yourself. Root to user."""


class MakeRoom(msgspec.Struct, frozen=True, tag="make_room"):
    """Leave your jobs to the next supervisor. Root to user."""


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """The connection with that number is served. User to root."""

    number: int


class Idle(msgspec.Struct, frozen=True, tag="idle"):
    """There is no job and no client. `taken`: the last connection that was taken. User to root."""

    taken: int


ToUser = Take | Cordon | Leave | End | MakeRoom
ToRoot = Taken | Idle | Cordon

# A user's supervisor may send any bytes, and root's process must survive them.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_to_user = msgspec.json.Decoder(ToUser)
_to_root = msgspec.json.Decoder(ToRoot)


def encode(message: ToUser | ToRoot) -> bytes:
    return msgspec.json.encode(message)


def read_by_user(data: bytes) -> ToUser | None:
    """Decodes a message. Returns None for one of a later version."""
    try:
        return _to_user.decode(data)
    except _UNREADABLE:
        return None


def read_by_root(data: bytes) -> ToRoot | None:
    """Decodes a message. Returns None if it means nothing here."""
    try:
        return _to_root.decode(data)
    except _UNREADABLE:
        return None
