"""When has every other task of this event loop nothing to do?

As anyio.wait_all_tasks_blocked, which sleeps a tenth of a second whenever one task is not blocked yet: a few hundred
tests of the engine settle several times each.
"""

from __future__ import annotations

import asyncio
from typing import cast

TURNS_MAX = 100_000


async def settled() -> None:
    """Returns once all other tasks wait for something. A task that waits for a thread waits, too."""
    this = asyncio.current_task()
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
        if all(task is this or _is_blocked(task) for task in asyncio.all_tasks()):
            return
    raise AssertionError("a task never waits")


def _is_blocked(task: asyncio.Task[object]) -> bool:
    waiter = cast("asyncio.Future[object] | None", getattr(task, "_fut_waiter", None))
    return waiter is not None and not waiter.done()
