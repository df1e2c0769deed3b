"""Until when may anything run that the spawner has started?

The supervisor moves the fence on, as long as it knows that no other node may take this one's place. If it stands still,
everything is ended in time, and what it says as it goes on begins nothing: others have begun the next cycle meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .events import Events


class Fence:
    """`end` ends everything; it is called at the fence, and again for what begins beyond it."""

    def __init__(self, events: Events, end: Callable[[], None]) -> None:
        self._events = events
        self._end = end
        self._until_ns = 0  # 0: none was set

    def move(self, until_ns: int) -> None:
        self._until_ns = until_ns
        self._events.set_timer("fence", max(0.0, until_ns / 1e9 - time.monotonic()), self._end)

    def hold_back(self) -> None:
        """To be called once something has begun."""
        if 0 < self._until_ns <= time.monotonic_ns():
            self._end()
