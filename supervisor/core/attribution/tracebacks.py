"""Which Python exceptions ended which ranks, according to a log with the lines of many ranks mixed?

Lines of other ranks may interrupt a traceback, but its own lines are in order. If one exception came while another was
handled, the last one counts, as in Python. Two more ends of a process are recognised here: a crash that the
interpreter itself reports, and a command line that it or the script rejects.
"""

from __future__ import annotations

import re

import msgspec

HEAD = "Traceback (most recent call last):"
SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
REFUSAL = "command line refused"
RANKS_MAX = 65_536
_FRAME = re.compile(r'\s+File "([^"]+)", line (\d+)(?:, in (.+))?$')
_ERROR = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: (.*))?$")
_CRASH = re.compile(
    r"Fatal Python error: (Segmentation fault|Bus error|Illegal instruction|Floating[- ]point exception)"
)
_REFUSAL = re.compile(r"\S+\.py: error: (.+)")
_NO_SCRIPT = re.compile(r".{1,200}: can't open file .{1,500}No such file or directory")
_IGNORED = "Exception ignored in"
_LAST_WORDS = (_IGNORED, "Fatal Python error", ".py: error: ", "can't open file")  # a quick look; most lines have none
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")


def without_numbers(text: str) -> str:
    """Removes numbers for comparison, because addresses, sizes and ports differ between tries."""
    return _NUMBERS.sub("#", text)


class Raised(msgspec.Struct, frozen=True):
    """An exception as its traceback shows it. `place`: the script's innermost frame, such as "train.py:40"."""

    kind: str  # without its module
    message: str
    place: str
    line_number: int  # of its last line

    @property
    def signature(self) -> str:
        """Returns a text that is equal for the same error in two ranks or cycles; numbers don't count."""
        return f"{self.kind} at {self.place}: {without_numbers(self.message)}"


class _Open(msgspec.Struct):
    own_place: str = ""
    any_place: str = ""


class Tracebacks:
    """Collects exceptions from a log, line by line."""

    def __init__(self) -> None:
        self._open: dict[int | None, _Open] = {}
        self._ignored: set[int | None] = set()  # ranks whose next traceback ends nothing
        self.raised: dict[int | None, Raised] = {}  # the last of each rank

    def take(self, rank: int | None, line: str, number: int) -> None:
        if line.rstrip() == HEAD:
            if rank in self._ignored:
                self._ignored.discard(rank)
            elif len(self._open) < RANKS_MAX:
                self._open[rank] = _Open()
            return
        current = self._open.get(rank)
        if current is None:
            self._take_last_word(rank, line, number)
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

    def _take_last_word(self, rank: int | None, line: str, number: int) -> None:
        """Notes the last line of a process without a traceback, or that a traceback does not end its process."""
        if not any(words in line for words in _LAST_WORDS):
            return
        if line.startswith(_IGNORED):
            if len(self._ignored) < RANKS_MAX:
                self._ignored.add(rank)
        elif crash := _CRASH.match(line):
            self.raised[rank] = Raised("crash", crash[1], "", number)
        elif refusal := _REFUSAL.match(line):
            self.raised[rank] = Raised(REFUSAL, refusal[1], "", number)
        elif _NO_SCRIPT.match(line):
            self.raised[rank] = Raised("FileNotFoundError", line.strip(), "", number)
