"""How are pieces of logs, receipts, and what belongs to them, encoded from a node's log process to the writer?

One message per frame (framing.py), over a node's Unix socket and between nodes alike. A log process sends pieces at
once, and gets receipts and troubles. Between nodes, both sides first introduce themselves.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from . import framing
from .log_pieces import Piece, Receipt

VERSION = 3  # of what nodes say to each other; 2 was gRPC
FRAME_BYTES_MAX = 1024 * 1024
PIECE_BYTES = 32 * 1024  # a source gathers lines up to this size; what is printed at once may exceed it
FILE_MAX = 10_000_000
NAME_CHARACTERS_MAX = 256
PROOF_BYTES_MAX = 64
REASON_BYTES_MAX = 4096
PAUSE_MS_MAX = 10_000

_PIECE = struct.Struct(">cQIQQ?")  # kind, stream, file, base, position, whether it ends the stream; then the lines
_RECEIPT = struct.Struct(">cQQ?")  # kind, stream, position, whether the stream has ended
_TERMS = struct.Struct(">cQI")  # kind, window in bytes, pause in milliseconds
_HELLO = struct.Struct(">cIHHH")  # kind, version, bytes of job id, caller and proof, which follow
LINES_BYTES_MAX = FRAME_BYTES_MAX - _PIECE.size  # of one piece


class Trouble(NamedTuple):
    """Says why receipts are missing; "": they are not."""

    reason: str


class Terms(NamedTuple):
    """How much a node may send ahead of receipts, and how long it gathers lines before it sends them."""

    window_bytes: int
    pause_ms: int = 0


class Greeting(NamedTuple):
    """The first frame of a server: it waits for the Hello."""


class Hello(NamedTuple):
    """The caller identifies itself: a node, or a leaf."""

    version: int
    job_id: str
    caller: str
    proof: bytes = b""


class Welcome(NamedTuple):
    """The server accepts the caller."""

    proof: bytes = b""


class Refusal(NamedTuple):
    """The server does not accept the caller, and then closes the connection."""

    reason: str


class Parting(NamedTuple):
    """The caller sends nothing more and will not come back."""


class Alive(NamedTuple):
    """The server still runs."""


Message: TypeAlias = "Piece | Receipt | Trouble | Terms | Greeting | Hello | Welcome | Refusal | Parting | Alive"


class LogFrameError(ValueError):
    """Raised for a frame that is not a message of this vocabulary, or is out of its bounds."""


def framed(message: Message) -> bytes:
    """Returns the frame of a message, ready to be sent."""
    return framing.encode(encode(message), frame_bytes_max=FRAME_BYTES_MAX)


def decoder() -> framing.Decoder:
    return framing.Decoder(frame_bytes_max=FRAME_BYTES_MAX)


def encode(message: Message) -> bytes:
    """Returns the frame's payload."""
    match message:
        case Piece(stream, file, base, position, lines, ends):
            return _PIECE.pack(b"p", stream, file, base, position, ends) + lines
        case Receipt(stream, position, ended):
            return _RECEIPT.pack(b"r", stream, position, ended)
        case Trouble(reason):
            return b"t" + _text(reason)
        case Terms(window_bytes, pause_ms):
            return _TERMS.pack(b"m", window_bytes, pause_ms)
        case Greeting():
            return b"g"
        case Hello(version, job_id, caller, proof):
            said = job_id.encode(), caller.encode("utf-8", "replace"), proof
            return _HELLO.pack(b"h", version, *map(len, said)) + b"".join(said)
        case Welcome(proof):
            return b"w" + proof
        case Refusal(reason):
            return b"x" + _text(reason)
        case Parting():
            return b"e"
        case Alive():
            return b"a"


def decode(payload: bytes) -> Message:
    """Returns the message in a frame's payload. Raises LogFrameError, and nothing else."""
    try:
        match payload[:1]:
            case b"p":
                return _piece(payload)
            case b"r":
                _, stream, position, ended = _RECEIPT.unpack(payload)
                return Receipt(stream, position, ended)
            case b"m":
                _, window_bytes, pause_ms = _TERMS.unpack(payload)
                return Terms(window_bytes, min(pause_ms, PAUSE_MS_MAX))
            case b"h":
                return _hello(payload)
            case b"t" | b"x" | b"w" as kind:
                return _worded(kind, payload[1:])
            case b"g" | b"e" | b"a" as kind if len(payload) == 1:
                return {b"g": Greeting, b"e": Parting, b"a": Alive}[kind]()
            case _:
                pass
    except (struct.error, UnicodeDecodeError):
        pass
    raise LogFrameError("a message about logs can't be read")


def _piece(payload: bytes) -> Piece:
    _, stream, file, base, position, ends = _PIECE.unpack_from(payload)
    lines = payload[_PIECE.size :]
    if file > FILE_MAX or base > position or position + len(lines) >= 2**63:
        raise LogFrameError(f"a piece of a log is out of bounds: file {file}, position {position}")
    if lines and not lines.endswith(b"\n"):
        raise LogFrameError("a piece of a log does not end with its line")
    return Piece(stream, file, base, position, lines, ends)


def _hello(payload: bytes) -> Hello:
    _, version, *lengths = _HELLO.unpack_from(payload)
    if version != VERSION:
        return Hello(version, "", "")  # What follows may mean something else.
    parts: list[bytes] = []
    rest = payload[_HELLO.size :]
    for length in lengths:
        parts.append(rest[:length])
        rest = rest[length:]
    job_id, caller = parts[0].decode(), parts[1].decode()
    if rest or list(map(len, parts)) != lengths or max(len(job_id), len(caller)) > NAME_CHARACTERS_MAX:
        raise LogFrameError("the first message of a log's sender is out of bounds")
    return Hello(version, job_id, caller, parts[2])


def _worded(kind: bytes, rest: bytes) -> Trouble | Refusal | Welcome:
    if kind == b"w":
        return Welcome(rest[:PROOF_BYTES_MAX])
    reason = rest[:REASON_BYTES_MAX].decode("utf-8", "replace")
    return Trouble(reason) if kind == b"t" else Refusal(reason)


def _text(reason: str) -> bytes:
    return reason.encode("utf-8", "backslashreplace")[:REASON_BYTES_MAX]
