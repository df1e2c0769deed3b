"""Does a pause last, and does it end when cancelled?"""

from __future__ import annotations

import time

import anyio

from supervisor.ports.timed_waits import pause


async def test_a_pause_lasts_as_long_as_it_says():
    start_s = time.monotonic()
    await pause(0.02, why="the test measures it")
    assert time.monotonic() - start_s >= 0.02


async def test_a_cancelled_pause_ends_at_once():
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: pause(3600, why="the test cancels it"))
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
