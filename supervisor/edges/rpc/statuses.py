"""How does a gRPC call end, and how is its reason spelled on the wire?"""

from __future__ import annotations

import enum
import re
import urllib.parse

TEXT_CHARACTERS_MAX = 400  # of a peer's reason


class Status(enum.IntEnum):
    """The canonical codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallError(Exception):
    """Ends a call: raised by what answers it, and to the one who made it. `details`: an encoded google.rpc.Status."""

    def __init__(self, status: int, text: str, details: bytes = b"") -> None:
        super().__init__(text)
        self.status = status
        self.details = details


class MessageTooLargeError(CallError):
    """Raised for a message of more bytes than are allowed, before they have come."""


def status_of(number: bytes) -> Status | None:
    """Returns the status that a peer has sent; None if it is none."""
    return Status(int(number)) if re.fullmatch(rb"[0-9]|1[0-6]", number) else None


def percent_encoded(text: str) -> bytes:
    """Encodes a reason as gRPC does: printable ASCII stays as it is."""
    return "".join(each if " " <= each <= "~" and each != "%" else _percent(each) for each in text).encode()


def percent_decoded(encoded: bytes) -> str:
    """Returns a peer's reason, shortened."""
    return urllib.parse.unquote(encoded.decode(errors="replace"))[:TEXT_CHARACTERS_MAX]


def _percent(letter: str) -> str:
    return "".join(f"%{byte:02X}" for byte in letter.encode(errors="replace"))
