"""Which ranks continued training after a line of the log?

A rank that continues prints lines that differ only in their numbers: steps, losses, a growing bar. Fault messages may
repeat as well, but are not progress.
"""

from __future__ import annotations

import re
from collections import Counter, deque

LINES_ALIKE = 3
TAIL_LINES_MAX = 16  # for each rank; its last lines show progress
LINE_CHARACTERS_MAX = 200
_CHANGING = re.compile(r"[\d.,:\s#\u2580-\u259f]+")
_NO_PROGRESS = re.compile(
    r"NCCL|c10d|0x|File \"|\berror\b|exception|fail|time[d-]? ?out|warn|kill|retry|abort|wait|stuck|hang|hung|"
    r"no progress",
    re.IGNORECASE,
)


class Progress:
    """The progress of ranks. Takes the log line by line, and computes only when asked."""

    def __init__(self) -> None:
        self._tails: dict[int | None, deque[tuple[int, str]]] = {}

    def take(self, rank: int | None, line: str, number: int) -> None:
        tail = self._tails.get(rank)
        if tail is None:
            tail = self._tails[rank] = deque(maxlen=TAIL_LINES_MAX)
        tail.append((number, line[:LINE_CHARACTERS_MAX]))

    def goes_on(self, rank: int | None, number: int) -> bool:
        """Returns whether `rank` made progress after the line `number`."""
        alike: Counter[str] = Counter()
        for line in {line for at, line in self._tails.get(rank, ()) if at > number}:
            if not _NO_PROGRESS.search(line) and (shape := _CHANGING.sub("#", line)) != line:
                alike[shape] += 1
        return max(alike.values(), default=0) >= LINES_ALIKE

    def anyone_goes_on(self, number: int) -> bool:
        return any(self.goes_on(rank, number) for rank in self._tails)
