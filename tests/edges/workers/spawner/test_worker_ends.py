"""An end that the spawner does not report is reported once; one that it reports is not."""

from __future__ import annotations

import os
import resource
import subprocess

import anyio

from supervisor.edges.workers.spawner.worker_ends import REPORT_GRACE_S, WorkerEnds
from tests.edges.workers.worker_side import until


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


async def test_an_unreported_end_is_told_once_and_a_reported_one_is_not() -> None:
    told: list[tuple[int, int]] = []
    silent, reported, living = _sleeper(), _sleeper(), _sleeper()
    ends = WorkerEnds(lambda cycle, local_rank: told.append((cycle, local_rank)))
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ends.run)
            for local_rank, process in enumerate((silent, reported, living)):
                ends.note(2, local_rank, process.pid)
            reported.kill()
            silent.kill()
            ends.forget(2, 1)
            await until(lambda: told)
            with anyio.move_on_after(2 * REPORT_GRACE_S):
                await until(lambda: len(told) > 1)
            tasks.cancel_scope.cancel()
        assert told == [(2, 0)]
    finally:
        before = len(os.listdir("/proc/self/fd"))
        ends.close()
        assert len(os.listdir("/proc/self/fd")) == before - 2, "the one that lives, and the list of all"
        for process in (silent, reported, living):
            process.kill()
            process.wait(10)


def test_without_descriptors_nothing_is_seen_and_nothing_breaks() -> None:
    ends = WorkerEnds(lambda _cycle, _local_rank: None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
    try:
        ends.note(0, 0, os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ends.forget(0, 0)
    ends.close()
