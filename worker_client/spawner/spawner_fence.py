"""Until when may the processes run that the spawner has started?

The supervisor moves the fence as long as it knows that no other node may take this one's place. If it stalls,
everything is ended in time, and its later orders start nothing: others may have begun the next cycle meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .event_loop import Events


class Fence:
    """The fence. It calls `end`, which ends everything, when due, and again for what starts after that."""

    def __init__(self, events: Events, end: Callable[[], None]) -> None:
        self._events = events
        self._end = end
        self._until_ns = 0  # 0: none was set

    def move(self, until_ns: int) -> None:
        self._until_ns = until_ns
        self._events.set_timer("fence", max(0.0, until_ns / 1e9 - time.monotonic()), self._end)

    def hold_back(self) -> None:
        """Ends what has started after the fence, unless a message that waits to be read moves it.

        Call it after each start: that may have taken long.
        """
        if 0 < self._until_ns <= time.monotonic_ns():
            self._events.set_timer("fence", 0.0, self._end)
