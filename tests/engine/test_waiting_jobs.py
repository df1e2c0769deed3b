"""A job that is added several times is taken once, in order."""

from __future__ import annotations

import anyio

from supervisor.engine.waiting_jobs import WaitingJobs


async def test_a_job_is_taken_once_and_in_order() -> None:
    jobs, taken = WaitingJobs(), list[str]()

    async def take(count: int) -> None:
        for _ in range(count):
            taken.append(await jobs.take())

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, 3)
            await anyio.lowlevel.checkpoint()
            for job_id in ("a", "a", "b"):
                jobs.add(job_id)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            jobs.add("a")
    assert taken == ["a", "b", "a"]
