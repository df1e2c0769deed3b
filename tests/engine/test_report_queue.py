"""Reports stay in order, whatever is wrong with the checkpoint file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from supervisor.core.cluster.cluster_messages import Event as Report
from supervisor.core.cluster.cluster_messages import JobOpened, NodeFailed, NodeJoined, NodeStopped
from supervisor.core.facts import Cause, JobRules
from supervisor.engine.report_queue import ReportQueue
from tests.engine.world import SetClock
from tests.settling import settled

OPENED = JobOpened("n0", JobRules("j", 1))
JOINED = NodeJoined("n0", 0)
FAILED = NodeFailed("n0", 0, "rank 0 failed")
STOPPED = NodeStopped("n0", all_succeeded=False)


class Disk:
    """A disk that answers when a test says so."""

    def __init__(self) -> None:
        self.answer = anyio.Event()
        self.iteration: int | None = 40
        self.error: Exception | None = None
        self.reads = 0

    async def read(self) -> int | None:
        self.reads += 1
        await self.answer.wait()
        if self.error is not None:
            raise self.error
        return self.iteration


def queue(
    read: Callable[[], Awaitable[int | None]] | None, clock: SetClock | None = None
) -> tuple[ReportQueue, list[Report]]:
    left: list[Report] = []
    return ReportQueue(read_iteration=read, leave=left.append, clock=clock or SetClock()), left


async def test_without_a_file_every_report_leaves_at_once() -> None:
    reports, left = queue(None)
    assert [reports.put(each) for each in (OPENED, JOINED, FAILED)] == [False, False, False]
    assert left == [OPENED, JOINED, FAILED]


async def test_reports_behind_one_that_is_read_for_wait_and_only_the_first_asks_for_a_drain() -> None:
    disk = Disk()
    reports, left = queue(disk.read)
    assert reports.put(JOINED) is False
    assert [reports.put(each) for each in (FAILED, JOINED, STOPPED)] == [True, False, False]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reports.drain)
        await settled()
        assert left == [JOINED]
        assert reports.put(OPENED) is False  # it came while the disk was awaited
        disk.answer.set()
    assert [type(each) for each in left] == [NodeJoined, NodeFailed, NodeJoined, NodeStopped, JobOpened]
    assert [each.training_iteration for each in left if isinstance(each, JobOpened | NodeFailed)] == [40, 40]
    assert reports.put(STOPPED) is False


@pytest.mark.parametrize("error", [OSError("stale handle"), AssertionError("a defect")])
async def test_a_file_that_cannot_be_read_keeps_no_report_back(error: Exception) -> None:
    disk = Disk()
    disk.error = error
    disk.answer.set()
    reports, left = queue(disk.read)
    assert reports.put(FAILED)
    reports.put(STOPPED)
    await reports.drain()
    assert left == [FAILED, STOPPED]
    assert disk.reads == 1


async def test_a_file_without_an_iteration_says_none() -> None:
    disk = Disk()
    disk.iteration = None
    disk.answer.set()
    reports, left = queue(disk.read)
    reports.put(FAILED)
    await reports.drain()
    assert left == [FAILED]


async def test_a_report_that_waits_for_the_file_tells_the_age_that_its_cause_has_by_then() -> None:
    clock, disk = SetClock(), Disk()
    disk.answer.set()
    reports, left = queue(disk.read, clock)
    reports.put(FAILED)
    reports.put(NodeJoined("n0", 0, Cause("rank 0 raised", age_s=0.5)))
    clock.at_s += 2.0
    waiting = NodeJoined("n0", 0, Cause("rank 0 raised", age_s=2.5))
    assert reports.waiting == (FAILED, waiting)
    await reports.drain()
    assert left[1] == waiting
