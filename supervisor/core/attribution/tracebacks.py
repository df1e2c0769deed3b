"""Which Python exceptions ended which ranks? From log lines, of many ranks mixed.

A traceback of one rank may be torn apart by the lines of others, but its own lines are in order. Where one exception
came while another was handled, the last is told, as Python does.
"""

from __future__ import annotations

import re

import msgspec

HEAD = "Traceback (most recent call last):"
SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
RANKS_MAX = 65_536
_FRAME = re.compile(r'\s+File "([^"]+)", line (\d+)(?:, in (.+))?$')
_ERROR = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: (.*))?$")
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")


def without_numbers(text: str) -> str:
    """For comparison: addresses, sizes and ports differ from try to try."""
    return _NUMBERS.sub("#", text)


class Raised(msgspec.Struct, frozen=True):
    """An exception as its traceback shows it. `place` is "train.py:40" of the script's own innermost frame."""

    kind: str  # without its module
    message: str
    place: str
    line_number: int  # of its last line

    @property
    def signature(self) -> str:
        """Equal for the same mistake of two ranks or cycles: numbers don't count."""
        return f"{self.kind} at {self.place}: {without_numbers(self.message)}"


class _Open(msgspec.Struct):
    own_place: str = ""
    any_place: str = ""


class Tracebacks:
    """Fed line by line."""

    def __init__(self) -> None:
        self._open: dict[int | None, _Open] = {}
        self.raised: dict[int | None, Raised] = {}  # the last of each rank

    def take(self, rank: int | None, line: str, number: int) -> None:
        if line.rstrip() == HEAD:
            if len(self._open) < RANKS_MAX:
                self._open[rank] = _Open()
            return
        current = self._open.get(rank)
        if current is None:
            return
        if frame := _FRAME.match(line):
            place = f"{frame[1].rsplit('/', 1)[-1]}:{frame[2]}"
            current.any_place = place
            if not any(part in frame[1] for part in _LIBRARY):
                current.own_place = place
        elif line[:1] not in (" ", "\t", ""):
            del self._open[rank]
            if error := _ERROR.match(line.strip()):
                kind = error[1].rsplit(".", 1)[-1]
                self.raised[rank] = Raised(kind, error[2] or "", current.own_place or current.any_place, number)
