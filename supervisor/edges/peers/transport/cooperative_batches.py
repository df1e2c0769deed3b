"""How is work for thousands of nodes done without blocking the event loop for everything else?

Each turn of the loop does a share of it. One timer serves all work that is due later, not one for each node.
"""

from __future__ import annotations

import asyncio  # anyio has no callbacks
from collections import deque
from collections.abc import Callable

import anyio

SHARE_MAX = 1024  # calls in one turn of the event loop, some 20 ms: an order to all is out before the answers come in

Call = Callable[[], None]


class BatchedCalls:
    """Makes calls in order, a share of them in each turn of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: deque[Call] = deque()
        self._is_due = False
        self._emptied: anyio.Event | None = None

    def soon(self, call: Call) -> None:
        self._calls.append(call)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._take)

    async def until_empty(self) -> None:
        while self._is_due:
            self._emptied = self._emptied or anyio.Event()
            await self._emptied.wait()

    def _take(self) -> None:
        try:
            for _ in range(min(SHARE_MAX, len(self._calls))):
                self._calls.popleft()()
        finally:  # after an error of one call, the others still get their turn
            self._is_due = bool(self._calls)
            if self._is_due:
                self._loop.call_soon(self._take)
            elif self._emptied is not None:
                self._emptied.set()
                self._emptied = None


class DelayedCalls:
    """Makes calls `delay_s` after they were requested, with one timer for all."""

    def __init__(self, delay_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._delay_s = delay_s
        self._due: deque[tuple[float, Call]] = deque()
        self._turns = BatchedCalls()

    def call(self, call: Call) -> None:
        due_s = self._loop.time() + self._delay_s
        if not self._due:
            self._loop.call_at(due_s, self._pass_on)
        self._due.append((due_s, call))

    def _pass_on(self) -> None:
        now_s = self._loop.time()
        while self._due and self._due[0][0] <= now_s:
            self._turns.soon(self._due.popleft()[1])
        if self._due:
            self._loop.call_at(self._due[0][0], self._pass_on)
