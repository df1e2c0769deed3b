"""How does work wait for its turn, limited in number, in order of arrival, and with at most one item per key?"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio

_T = TypeVar("_T")


def _the_same(_: object) -> Hashable:
    return None


class WorkQueue(Generic[_T]):
    """A queue of work, for one event loop."""

    def __init__(self, *, most: int, places: int = 1, key: Callable[[_T], Hashable] = _the_same) -> None:
        """`places`: how many items are worked on at the same time, of each `key` at most one."""
        self._most = most
        self._places = places
        self._key = key
        self._waiting: deque[_T] = deque()
        self._in_work: set[Hashable] = set()
        self._changed = anyio.Event()

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= self._most

    def put(self, item: _T) -> None:
        """Adds an item; the caller has checked `is_full`."""
        self._waiting.append(item)
        self._ring()

    async def serve(self, work: Callable[[_T], Awaitable[None]]) -> None:
        """Works on the items until cancelled. `work` must not raise."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self._places):
                tasks.start_soon(self._serve_one_place, work)

    async def _serve_one_place(self, work: Callable[[_T], Awaitable[None]]) -> None:
        while True:
            item = next((each for each in self._waiting if self._key(each) not in self._in_work), None)
            if item is None:
                await self._changed.wait()
                continue
            self._waiting.remove(item)
            key = self._key(item)
            self._in_work.add(key)
            await work(item)
            self._in_work.remove(key)
            self._ring()

    async def emptied(self) -> None:
        """Returns once no item waits or is being worked on."""
        while self._waiting or self._in_work:
            await self._changed.wait()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
