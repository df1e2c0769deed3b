"""How is time waited for where no event says when, and how long may work take if this process is suspended meanwhile?

Each `pause` says why no event can be awaited instead.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

PAUSED_S = 1.0  # a turn this late: this process was stopped, perhaps with its ranks, or starved
TURN_EVERY_S = 2.0  # while there is a deadline: nothing else tells of a pause that ends before it

T = TypeVar("T")


async def pause(duration_s: float, *, why: str) -> None:
    """Waits for `duration_s`, or until cancelled. `why` is for the reader of the code."""
    del why
    with anyio.move_on_after(duration_s):
        await anyio.Event().wait()


class RunTime:
    """Counts how long this process has run since this was made, for all who wait for one work.

    As in the core, a pause of this process does not count from the last moment at which it is known to have run.
    """

    def __init__(self) -> None:
        self.begun_s = self._seen_s = self._turn_until_s = anyio.current_time()
        self._paused_s = 0.0
        self._waiting = 0

    async def reach(self, limit_s: float) -> None:
        """Returns once this process has run for `limit_s`."""
        self._notice()
        if not self._waiting:
            self._turn_until_s = self._seen_s
        self._waiting += 1
        try:
            while (left_s := limit_s - self._notice()) > 0:
                turn_s = min(TURN_EVERY_S, left_s)
                self._turn_until_s = max(self._turn_until_s, self._seen_s + turn_s)
                await pause(turn_s, why="only a late turn shows that this process did not run")
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._turn_until_s = math.inf  # Nobody takes turns: a long time says nothing.

    def _notice(self) -> float:
        now_s = anyio.current_time()
        if now_s > self._turn_until_s + PAUSED_S:
            self._paused_s += now_s - self._seen_s
        self._seen_s = now_s
        return now_s - self.begun_s - self._paused_s


async def within(limit_s: float, work: Callable[[], Awaitable[T]], *, since: RunTime | None = None) -> T | None:
    """Returns the result of `work`, which must not raise; None if it has none once this process has run for `limit_s`.

    `since`: of a work that others wait for, too; None: it begins now.
    """
    run_time = since or RunTime()

    async def end() -> None:
        await run_time.reach(limit_s)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end)
        result = await work()
        tasks.cancel_scope.cancel()
        return result
    return None
