"""Does a watcher get every event once and in order, even if events are late, lost or recorded meanwhile?"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from supervisor.core.facts import JobState
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.operators.event_streams import all_events, past_events
from tests.edges.operators.fake_desk import FakeDesk, running

JOB = "train-7f3a"


def unexpected(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path, on_alarm=unexpected)
    journal.start()
    journal.save(running())
    return journal


async def watch(desk: FakeDesk, journal: Journal, seen: list[int], after: int = 0) -> None:
    limiter = anyio.CapacityLimiter(1)
    async for event in all_events(desk, journal, JOB, after_sequence=after, limiter=limiter):
        seen.append(event.sequence)  # noqa: PERF401  # one by one, for the test that looks on


async def wait_for(seen: list[int], count: int) -> None:
    with anyio.fail_after(10):
        while len(seen) < count:
            await anyio.lowlevel.checkpoint()


async def test_the_past_then_what_comes_then_the_end(journal: Journal) -> None:
    desk = FakeDesk(running(), journal=journal)
    for _ in range(600):  # more than a page
        desk.publish(JOB)
    seen: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, desk, journal, seen)
        await wait_for(seen, 600)
        desk.publish(JOB)
        await wait_for(seen, 601)
        desk.end(JOB, JobState.SUCCEEDED, "done")
    assert seen == list(range(1, 603))


async def test_events_that_come_while_the_past_is_read_appear_once(journal: Journal) -> None:
    desk = FakeDesk(running(), journal=journal)
    for _ in range(3):
        desk.publish(JOB)
    seen: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, desk, journal, seen)
        with anyio.fail_after(10):
            while not desk.watchers:
                await anyio.lowlevel.checkpoint()
        desk.publish(JOB)  # subscribed, and the past is not read yet
        desk.end(JOB, JobState.SUCCEEDED, "done")
    assert seen == [1, 2, 3, 4, 5]


async def test_what_a_slow_watcher_lost_is_read_again(journal: Journal) -> None:
    desk = FakeDesk(running(), journal=journal)
    desk.publish(JOB)
    seen: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, desk, journal, seen)
        await wait_for(seen, 1)
        desk.publish(JOB, lost=True)
        desk.publish(JOB, lost=True)
        desk.publish(JOB)
        await wait_for(seen, 4)
        desk.publish(JOB, lost=True)  # lost at the very end
        for watcher in desk.watchers:
            watcher.close()
    assert seen == [1, 2, 3, 4, 5]


async def test_a_watcher_goes_on_where_it_stopped(journal: Journal) -> None:
    desk = FakeDesk(running(), journal=journal)
    for _ in range(5):
        desk.publish(JOB)
    desk.end(JOB, JobState.SUCCEEDED, "done")
    seen: list[int] = []
    await watch(desk, journal, seen, after=3)
    assert seen == [4, 5, 6]


async def test_an_unknown_job_has_no_past(journal: Journal) -> None:
    limiter = anyio.CapacityLimiter(1)
    assert [each async for each in past_events(journal, "other", after_sequence=0, limiter=limiter)] == []
