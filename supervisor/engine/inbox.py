"""What has happened and was not looked at yet: the one door between the edges and the engine."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import anyio

EVENTS_MAX = 65_536
WORKER_EVENTS_MAX = 32_768  # workers may fill half of it; the rest is kept for exits, stops and deadlines

Item = TypeVar("Item")


class InboxFullError(AssertionError):
    """Raised when events that can't be dropped pile up: the engine has stopped taking them, which is our bug."""


class Inbox(Generic[Item]):
    """A bounded queue with one reader, for use on one event loop. `put` never blocks."""

    def __init__(self) -> None:
        self._events: deque[Item] = deque()
        self._arrived = anyio.Event()
        self.dropped = 0  # droppable events that found the inbox half full

    def put(self, event: Item, *, droppable: bool = False) -> None:
        """Adds an event. `droppable` ones (a worker may send any number) are counted and dropped under pressure."""
        if droppable and len(self._events) >= WORKER_EVENTS_MAX:
            self.dropped += 1
            return
        if len(self._events) >= EVENTS_MAX:
            raise InboxFullError(f"cannot take an event: {EVENTS_MAX} wait already")
        self._events.append(event)
        self._arrived.set()

    def take_all(self) -> list[Item]:
        """Everything that waits, oldest first; empty if nothing does."""
        events = list(self._events)
        self._events.clear()
        self._arrived = anyio.Event()
        return events

    async def wait(self) -> None:
        """Returns once there is something to take."""
        if not self._events:
            await self._arrived.wait()
