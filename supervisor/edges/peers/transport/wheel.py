"""Which of thousands of connections is due for a check, without a timer for each and without checking all?

Pure. A connection that was heard meanwhile is postponed when its moment comes, not each time it is heard.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Item = TypeVar("Item")


class Wheel(Generic[Item]):
    def __init__(self, notch_s: float) -> None:
        self._notch_s = notch_s
        self._notches: dict[int, list[Item]] = {}
        self._taken = -1  # the last notch that is completely taken; -1: none yet

    def put(self, item: Item, due_s: float) -> None:
        """Adds an item, to be taken at the first check after `due_s` or at most a notch later."""
        notch = max(self._taken, int(due_s / self._notch_s)) + 1
        self._notches.setdefault(notch, []).append(item)

    def take(self, now_s: float) -> list[Item]:
        """Returns all due items, the earliest first."""
        self._taken = max(self._taken, int(now_s / self._notch_s))
        due = sorted(notch for notch in self._notches if notch <= self._taken)
        return [item for notch in due for item in self._notches.pop(notch)]
