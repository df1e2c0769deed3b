"""What do a node's log process and the node's sender say to each other (--ft-enable-log-server)?

They exchange frames (framing.py) over a Unix socket: pieces of a stream to the sender; receipts, or why there are
none, from it. supervisor/core/log_funnel/pieces.py explains pieces, positions and receipts.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

FRAME_BYTES_MAX = 1024 * 1024
PIECE_BYTES = 32 * 1024  # lines are gathered up to this size; a single long line may exceed it

_PIECE = struct.Struct(">cQIQQ?")  # kind, stream, file, base, position, whether it ends the stream; then the lines
_RECEIPT = struct.Struct(">cQQ?")  # kind, stream, position, whether the stream has ended
_IS_PIECE, _IS_RECEIPT, _IS_TROUBLE = b"p", b"r", b"t"


class DoorPiece(NamedTuple):
    stream: int
    file: int
    base: int
    position: int
    ends: bool
    lines: bytes


class DoorReceipt(NamedTuple):
    stream: int
    position: int
    ended: bool


class DoorTrouble(NamedTuple):
    """Says why receipts are missing; "": they are not."""

    reason: str


class DoorError(ValueError):
    """Raised for a frame that is not a message of this vocabulary."""


def encode(message: DoorPiece | DoorReceipt | DoorTrouble) -> bytes:
    """Returns the frame's payload."""
    match message:
        case DoorPiece(stream, file, base, position, ends, lines):
            return _PIECE.pack(_IS_PIECE, stream, file, base, position, ends) + lines
        case DoorReceipt(stream, position, ended):
            return _RECEIPT.pack(_IS_RECEIPT, stream, position, ended)
        case DoorTrouble(reason):
            return _IS_TROUBLE + reason.encode("utf-8", "backslashreplace")


def decode(payload: bytes) -> DoorPiece | DoorReceipt | DoorTrouble:
    """Returns the message in a frame's payload. Raises DoorError."""
    try:
        match payload[:1]:
            case b"p":
                _, stream, file, base, position, ends = _PIECE.unpack_from(payload)
                return DoorPiece(stream, file, base, position, ends, payload[_PIECE.size :])
            case b"r":
                _, stream, position, ended = _RECEIPT.unpack(payload)
                return DoorReceipt(stream, position, ended)
            case b"t":
                return DoorTrouble(payload[1:].decode("utf-8", "replace"))
            case _:
                pass
    except struct.error:
        pass
    raise DoorError("cannot read a message between a log process and the sender of its node")
