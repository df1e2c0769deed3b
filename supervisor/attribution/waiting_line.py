"""How does work wait for its turn, limited in number, one item at a time, in order of arrival?"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

_T = TypeVar("_T")


class WaitingLine(Generic[_T]):
    """A queue of work, for one event loop."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._waiting: deque[_T] = deque()
        self._is_working = False
        self._changed = anyio.Event()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= self._most

    def put(self, item: _T) -> None:
        """Adds an item; the caller has checked `is_full`."""
        self._waiting.append(item)
        self._changed.set()

    async def serve(self, work: Callable[[_T], Awaitable[None]]) -> None:
        """Works on the items until cancelled. `work` must not raise."""
        while True:
            while self._waiting:
                self._is_working = True
                await work(self._waiting.popleft())
                self._is_working = False
            self._changed.set()
            self._changed = anyio.Event()
            await self._changed.wait()

    async def emptied(self) -> None:
        """Returns once no item waits or is being worked on."""
        while self._waiting or self._is_working:
            await self._changed.wait()
