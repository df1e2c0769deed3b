"""What a log process of a node and the node's sender say to each other (--ft-enable-log-server).

Frames (framing.py) over a Unix socket. To the sender: pieces of a stream. From it: receipts, and why there are none.
What pieces, positions and receipts are is said in supervisor/core/log_funnel/pieces.py.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

FRAME_BYTES_MAX = 1024 * 1024
PIECE_BYTES = 32 * 1024  # lines are gathered up to so much; one long line may be more

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
    """Why receipts do not come; "": they do."""

    reason: str


class DoorError(ValueError):
    """Raised for a frame that is no message of this vocabulary."""


def encode(message: DoorPiece | DoorReceipt | DoorTrouble) -> bytes:
    """The frame's payload."""
    match message:
        case DoorPiece(stream, file, base, position, ends, lines):
            return _PIECE.pack(_IS_PIECE, stream, file, base, position, ends) + lines
        case DoorReceipt(stream, position, ended):
            return _RECEIPT.pack(_IS_RECEIPT, stream, position, ended)
        case DoorTrouble(reason):
            return _IS_TROUBLE + reason.encode("utf-8", "backslashreplace")


def decode(payload: bytes) -> DoorPiece | DoorReceipt | DoorTrouble:
    """Raises DoorError."""
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
