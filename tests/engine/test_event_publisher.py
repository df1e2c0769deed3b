"""Who learns of an event, in which order, and does a failing journal or watcher keep it from others?"""

from __future__ import annotations

import logging

import pytest
from anyio.streams.memory import MemoryObjectReceiveStream

from supervisor.config import JobSpec
from supervisor.core.facts import JobEvent
from supervisor.engine import event_publisher as publishers
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.engine.unsent_events import UnsentEvents
from supervisor.engine.waiting_jobs import WaitingJobs
from tests.engine.world import FakeJournal, SetClock
from tests.queries.shared_job import SHARED


class JobService:
    def __init__(self) -> None:
        self.journal = FakeJournal()
        self.unsent, self.unkept = UnsentEvents(), WaitingJobs()
        self.publisher = EventPublisher(
            journal=self.journal, clock=SetClock(), node_name="n0", unsent=self.unsent, unkept=self.unkept
        )

    def job(self, job_id: str = "j") -> JobRecord:
        return JobRecord(JobSpec(job_id, ("t.py",)), {}, 5, "/logs")

    def publish(self, job: JobRecord, *kinds: str) -> None:
        for kind in kinds:
            self.publisher.publish(job, JobEvent(kind, f"{kind} happened"))


async def test_an_event_has_its_number_time_and_node_wherever_it_is_read() -> None:
    job_service, job = JobService(), JobService().job()
    async with job_service.publisher.watch("j", ended=False) as events:
        job_service.publish(job, "a", "b")
        job_service.publisher.close("j")
        seen = [event async for event in events]
    assert seen == job_service.journal.events
    assert [(each.sequence, each.kind, each.node, each.at_ns) for each in seen] == [
        (1, "a", "n0", 100 * 10**9), (2, "b", "n0", 100 * 10**9),
    ]  # fmt: skip


async def test_watchers_hear_of_their_own_job_from_now_on() -> None:
    job_service = JobService()
    ours, other = job_service.job(), job_service.job("other")
    job_service.publish(ours, "before")
    async with job_service.publisher.watch("j", ended=False) as events:
        job_service.publish(other, "not_ours")
        job_service.publish(ours, "ours")
        job_service.publisher.close("j")
        assert [event.kind async for event in events] == ["ours"]
    job_service.publish(ours, "after")  # nobody watches any more


async def test_a_watcher_that_is_too_slow_sees_the_gap_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "WATCHER_EVENTS_MAX", 2)
    job_service, job = JobService(), JobService().job()
    async with job_service.publisher.watch("j", ended=False) as slow:
        job_service.publish(job, "a", "b", "c")
        assert (await anext(slow)).sequence == 1
        job_service.publish(job, "d")
        job_service.publisher.close("j")
        assert [event.sequence async for event in slow] == [2, 4]
    assert job_service.journal.kinds() == ["a", "b", "c", "d"]


async def test_a_watcher_that_is_about_to_leave_costs_nobody_an_event() -> None:
    """Its end of the stream is closed some turns of the loop before it is removed from the list."""
    job_service = JobService()
    job = job_service.job()
    async with (
        job_service.publisher.watch("j", ended=False) as leaving,
        job_service.publisher.watch("j", ended=False) as other,
    ):
        assert isinstance(leaving, MemoryObjectReceiveStream)
        leaving.close()
        job_service.publish(job, "a")
        assert (await anext(other)).kind == "a"
    assert job_service.journal.kinds() == ["a"]


async def test_what_no_spawner_keeps_has_a_bound_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawner that is stopped takes nothing: what waits for it must not grow as long as it is."""
    monkeypatch.setattr(publishers, "UNTOLD_EVENTS_MAX", 3)
    job_service, job = JobService(), JobService().job()
    job.is_returning = True
    job_service.publish(job, "a", "b", "c")
    assert (job_service.journal.kinds(), await job_service.unkept.take()) == ([], "j")
    job_service.publish(job, "d")
    assert job_service.journal.kinds() == ["a", "b", "c", "d"]
    job_service.publish(job, "e")
    assert job_service.journal.kinds()[4:] == []


def test_the_leader_gets_no_event_before_the_spawner_keeps_it() -> None:
    """If this supervisor were lost before that, the next one would give the number to another event."""
    job_service, job = JobService(), JobRecord(SHARED, {}, 5, "/logs")
    job.is_returning = True
    job_service.publish(job, "a", "b")
    assert job_service.unsent.get("j") is None
    for through, kinds in ((1, ["a"]), (None, ["a", "b"])):
        job_service.publisher.tell("j", through)
        assert [event.kind for event in job_service.unsent.of("j").events] == kinds


async def test_who_watches_an_ended_job_waits_for_nothing() -> None:
    async with JobService().publisher.watch("j", ended=True) as events:
        assert [event async for event in events] == []


def test_events_of_jobs_with_other_nodes_are_news_for_their_leader() -> None:
    job_service = JobService()
    job_service.publish(job_service.job(), "alone")
    job_service.publish(JobRecord(SHARED, {}, 5, "/logs"), "shared")
    assert [event.kind for event in job_service.unsent.of("j").events] == ["shared"]


async def test_a_journal_that_fails_keeps_no_event_from_its_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    job_service, job = JobService(), JobService().job()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(job_service.journal, "record", full)
    async with job_service.publisher.watch("j", ended=False) as events:
        job_service.publish(job, "a")
        job_service.publisher.close("j")
        assert [event.kind async for event in events] == ["a"]


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("worker_started", logging.DEBUG),
        ("worker_failed", logging.WARNING),
        ("job_failed", logging.ERROR),
        ("restart_decided", logging.INFO),
    ],
)
def test_the_log_says_what_somebody_should_look_at(kind: str, level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="holdfast.jobs")
    job_service = JobService()
    job_service.publish(job_service.job(), kind)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (level, f"{kind} happened")
    assert record.__dict__["job_id"] == "j"
