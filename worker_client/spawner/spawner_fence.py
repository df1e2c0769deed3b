"""Until when may the processes run that the spawner has started?

The supervisor moves the fence as long as it knows that no other node may take this one's place. If it stalls,
everything is ended in time, and its later orders start nothing: others may have begun the next cycle meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from holdfast_wire.spawner_link import Keep, KillTree, Message, Spawn

from .event_loop import Events


def without_ended_starts(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages without the starts of cycles that a later one ends: the spawner was stopped meanwhile.

    Such a worker would run until the later message is carried out, perhaps beside those of the next cycle.
    """
    kept: list[Message] = []
    ended: set[int] = set()
    for message in reversed(messages):
        orders = message.orders if isinstance(message, Keep) else (message,)
        ended.update(each.cycle for each in orders if isinstance(each, KillTree))
        left = tuple(each for each in orders if not (isinstance(each, Spawn) and each.cycle in ended))
        if isinstance(message, Keep):
            kept.append(message._replace(orders=left))
        else:
            kept += left
    return kept[::-1]


class Fence:
    """The fence. It calls `end`, which ends everything, when due, and again for what starts after that.

    `is_told`: whether a message waits to be read, which may move it. A process that was stopped finds both at once.
    """

    def __init__(self, events: Events, end: Callable[[], None], is_told: Callable[[], bool]) -> None:
        self._events = events
        self._end = end
        self._is_told = is_told
        self._until_ns = 0  # 0: none was set
        self._has_late_starts = False  # something has started after the fence

    @property
    def has_passed(self) -> bool:
        return 0 < self._until_ns <= time.monotonic_ns()

    def move(self, until_ns: int, at_ns: int) -> None:
        """Moves the fence, as was ordered at `at_ns`. An order that was given after the fence saves no late starts."""
        if self._has_late_starts and at_ns > self._until_ns:
            self._end()
        self._has_late_starts = False
        self._until_ns = until_ns
        self._events.set_timer("fence", max(0.0, until_ns / 1e9 - time.monotonic()), self._on_time)

    def hold_back(self) -> None:
        """Ends what has started after the fence, unless a message that waits to be read moved it in time.

        Call it after each start: that may have taken long.
        """
        if self.has_passed:
            self._has_late_starts = True
            self._events.set_timer("fence", 0.0, self._on_time)

    def _on_time(self) -> None:
        if self._is_told():
            self._events.set_timer("fence", 0.0, self._on_time)
        else:
            self._has_late_starts = False
            self._end()
