"""Does a watcher get every event once and in order, even if events are late, lost or recorded meanwhile?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from supervisor.core.facts import JobState
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.operators import event_streams
from supervisor.edges.operators.event_streams import all_events, followed_events, past_events, recorded_events
from supervisor.errors import ExhaustedError
from supervisor.ports.job_requests import JobHistory
from supervisor.ports.reports import RecordedEvent
from tests.edges.operators.fake_job_service import FakeJobService, NoHistory, running

JOB = "train-7f3a"


def unexpected(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path, on_alarm=unexpected)
    journal.start()
    journal.save(running())
    return journal


class OnDisk(NoHistory):
    """A journal without a memory."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def events(self, job_id: str, *, after_sequence: int = 0, limit: int) -> list[RecordedEvent]:
        return self._journal.events(job_id, after_sequence=after_sequence, limit=limit)


async def watch(
    job_service: FakeJobService,
    history: JobHistory,
    seen: list[int],
    after: int = 0,
    limiter: anyio.CapacityLimiter | None = None,
) -> None:
    limiter = limiter or anyio.CapacityLimiter(1)
    async for event in all_events(job_service, history, JOB, after_sequence=after, limiter=limiter):
        seen.append(event.sequence)  # noqa: PERF401  # one by one, for the test that looks on


async def wait_for(seen: Sequence[object], count: int) -> None:
    with anyio.fail_after(10):
        while len(seen) < count:
            await anyio.lowlevel.checkpoint()


async def test_the_past_then_what_comes_then_the_end(journal: Journal) -> None:
    job_service = FakeJobService(running(), journal=journal)
    for _ in range(600):  # more than a page
        job_service.publish(JOB)
    seen: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, job_service, journal, seen)
        await wait_for(seen, 600)
        job_service.publish(JOB)
        await wait_for(seen, 601)
        job_service.end(JOB, JobState.SUCCEEDED, "done")
    assert seen == list(range(1, 603))


async def test_events_that_come_while_the_past_is_read_appear_once(journal: Journal) -> None:
    job_service = FakeJobService(running(), journal=journal)
    for _ in range(3):
        job_service.publish(JOB)
    seen: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, job_service, OnDisk(journal), seen)
        with anyio.fail_after(10):
            while not job_service.watchers:
                await anyio.lowlevel.checkpoint()
        job_service.publish(JOB)  # subscribed, and the past is not read yet
        job_service.end(JOB, JobState.SUCCEEDED, "done")
    assert seen == [1, 2, 3, 4, 5]


async def test_the_end_needs_no_disk(journal: Journal) -> None:
    """The disk under the journal does not answer: earlier readers wait for it in all threads."""
    job_service = FakeJobService(running(), journal=journal)
    job_service.publish(JOB)
    seen: list[int] = []
    limiter = anyio.CapacityLimiter(1)
    limiter.acquire_on_behalf_of_nowait(journal)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, job_service, journal, seen, 0, limiter)
            await wait_for(seen, 1)
            job_service.publish(JOB)
            job_service.end(JOB, JobState.SUCCEEDED, "done")
    assert seen == [1, 2, 3]


async def test_what_a_slow_watcher_lost_is_read_again(journal: Journal) -> None:
    job_service = FakeJobService(running(), journal=journal)
    job_service.publish(JOB)
    seen: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, job_service, journal, seen)
        await wait_for(seen, 1)
        job_service.publish(JOB, lost=True)
        job_service.publish(JOB, lost=True)
        job_service.publish(JOB)
        await wait_for(seen, 4)
        job_service.publish(JOB, lost=True)  # lost at the very end
        for watcher in job_service.watchers:
            watcher.close()
    assert seen == [1, 2, 3, 4, 5]


async def test_a_watcher_goes_on_where_it_stopped(journal: Journal) -> None:
    job_service = FakeJobService(running(), journal=journal)
    for _ in range(5):
        job_service.publish(JOB)
    job_service.end(JOB, JobState.SUCCEEDED, "done")
    seen: list[int] = []
    await watch(job_service, journal, seen, after=3)
    assert seen == [4, 5, 6]


async def test_an_unknown_job_has_no_past(journal: Journal) -> None:
    limiter = anyio.CapacityLimiter(1)
    assert [each async for each in past_events(journal, "other", after_sequence=0, limiter=limiter)] == []


async def follow(
    job_service: FakeJobService, history: JobHistory, kinds: list[str], notes: list[str], after: int = 0
) -> None:
    async def note(text: str) -> None:
        notes.append(text)

    limiter = anyio.CapacityLimiter(1)
    async for event in followed_events(job_service, history, JOB, after_sequence=after, limiter=limiter, note=note):
        kinds.append(event.kind)  # noqa: PERF401  # one by one, for the test that looks on


async def test_a_node_that_leads_no_more_follows_the_next_leader(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "LEADER_AGAIN_S", 0.01)
    job_service = FakeJobService(running(), journal=journal)
    job_service.publish(JOB, "here")
    kinds, notes = list[str](), list[str]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, job_service, journal, kinds, notes)
        await wait_for(kinds, 1)
        (here,) = journal.events(JOB, limit=2)
        job_service.leader_events = [RecordedEvent(JOB, 1, 5, "elsewhere", "r", node="n1"), replace(here, sequence=2)]
        await wait_for(kinds, 2)
        job_service.end(JOB, JobState.SUCCEEDED, "done")
    assert (kinds, notes) == (["here", "elsewhere", "job_ended"], [])


async def test_what_the_watcher_had_from_a_node_that_led_does_not_come_again_from_the_next_leader(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "LEADER_AGAIN_S", 0.01)
    job_service = FakeJobService(running(), journal=journal)
    job_service.publish(JOB, "old")
    job_service.publish(JOB, "here")
    kinds, notes = list[str](), list[str]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, job_service, journal, kinds, notes, 1)
        await wait_for(kinds, 1)
        old, here = journal.events(JOB, limit=3)
        elsewhere = RecordedEvent(JOB, 2, 5, "elsewhere", "r", node="n1")
        job_service.leader_events = [replace(old, sequence=1), elsewhere, replace(here, sequence=3)]
        await wait_for(kinds, 2)
        job_service.end(JOB, JobState.SUCCEEDED, "done")
    assert (kinds, notes) == (["here", "elsewhere", "job_ended"], [])


async def test_the_own_events_come_if_the_leaders_disk_hangs(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "LEADER_AGAIN_S", 0.01)
    job_service = FakeJobService(running(), journal=journal)
    job_service.publish(JOB, "here")
    job_service.leader_events, job_service.leader_fails = [], ExhaustedError("cannot read the history: /state hangs")
    kinds, notes = list[str](), list[str]()

    async def note(text: str) -> None:
        notes.append(text)

    limiter = anyio.CapacityLimiter(1)
    events = recorded_events(job_service, journal, JOB, after_sequence=0, limiter=limiter, note=note)
    assert [event.kind async for event in events] == ["here"]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, job_service, journal, kinds, notes)
        await wait_for(kinds, 1)
        job_service.end(JOB, JobState.SUCCEEDED, "done")
    assert kinds == ["here", "job_ended"]
    why = "the leader can't show its events: cannot read the history: /state hangs; "
    assert notes == [
        f"{why}these are the events of this node alone",
        f"{why}the leader is asked again, and only this node's events are shown until then",
    ]
