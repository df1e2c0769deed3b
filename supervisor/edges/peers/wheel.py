"""Which of thousands of connections is due to be looked at, without a timer for each and without looking at all?

Pure. A connection that was heard meanwhile is put off when its moment comes, not each time that it is heard.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Item = TypeVar("Item")


class Wheel(Generic[Item]):
    def __init__(self, notch_s: float) -> None:
        self._notch_s = notch_s
        self._notches: dict[int, list[Item]] = {}
        self._taken = -1  # the last notch of which nothing is left; -1: none yet

    def put(self, item: Item, due_s: float) -> None:
        """It is taken at the first look after `due_s`, at most a notch later than that."""
        notch = max(self._taken, int(due_s / self._notch_s)) + 1
        self._notches.setdefault(notch, []).append(item)

    def take(self, now_s: float) -> list[Item]:
        """All that are due, the earliest first."""
        self._taken = max(self._taken, int(now_s / self._notch_s))
        due = sorted(notch for notch in self._notches if notch <= self._taken)
        return [item for notch in due for item in self._notches.pop(notch)]
