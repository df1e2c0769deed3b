"""Where must the code wait for time to pass, and how long may work take if this process is suspended meanwhile?

Each pause says why no event can be awaited instead.
"""

from __future__ import annotations

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


async def within(limit_s: float, work: Callable[[], Awaitable[T]]) -> T | None:
    """Returns the result of `work`, which must not raise; None if it has none within `limit_s`.

    As in the core, a pause of this process counts from the last moment at which it is known to have run.
    """

    async def end() -> None:
        until_s = anyio.current_time() + limit_s
        while (begun_s := anyio.current_time()) < until_s:
            turn_s = min(TURN_EVERY_S, until_s - begun_s)
            await pause(turn_s, why="only a late turn shows that this process did not run")
            if (passed_s := anyio.current_time() - begun_s) > turn_s + PAUSED_S:
                until_s += passed_s
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end)
        result = await work()
        tasks.cancel_scope.cancel()
        return result
    return None
