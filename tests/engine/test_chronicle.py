"""Who learns of an event, in which order, and does a failing journal or watcher keep it from others?"""

from __future__ import annotations

import logging

import pytest
from anyio.streams.memory import MemoryObjectReceiveStream

from supervisor.config import JobSpec
from supervisor.core.facts import JobEvent, JobState
from supervisor.engine import chronicle as chronicles
from supervisor.engine.chronicle import Chronicle
from supervisor.engine.job_book import JobRecord
from supervisor.ports import JobReport
from tests.engine.world import FakeJournal, SetClock


class Desk:
    def __init__(self) -> None:
        self.journal = FakeJournal()
        self.chronicle = Chronicle(journal=self.journal, clock=SetClock(), node_name="n0")
        self.chronicle.attach(lambda job: JobReport(job.spec.job_id, JobState.RUNNING, job.submitted_at_ns))

    def job(self, job_id: str = "j") -> JobRecord:
        return JobRecord(JobSpec(job_id, ("t.py",)), {}, 5, "/logs")

    def publish(self, job: JobRecord, *kinds: str) -> None:
        for kind in kinds:
            self.chronicle.publish(job, JobEvent(kind, f"{kind} happened"))


async def test_an_event_has_its_number_time_and_node_wherever_it_is_read() -> None:
    desk, job = Desk(), Desk().job()
    async with desk.chronicle.watch("j", ended=False) as events:
        desk.publish(job, "a", "b")
        desk.chronicle.close("j")
        seen = [event async for event in events]
    assert seen == desk.journal.events
    assert [(each.sequence, each.kind, each.node, each.at_ns) for each in seen] == [
        (1, "a", "n0", 100 * 10**9), (2, "b", "n0", 100 * 10**9),
    ]  # fmt: skip


async def test_watchers_hear_of_their_own_job_from_now_on() -> None:
    desk = Desk()
    ours, other = desk.job(), desk.job("other")
    desk.publish(ours, "before")
    async with desk.chronicle.watch("j", ended=False) as events:
        desk.publish(other, "not_ours")
        desk.publish(ours, "ours")
        desk.chronicle.close("j")
        assert [event.kind async for event in events] == ["ours"]
    desk.publish(ours, "after")  # nobody watches any more


async def test_a_watcher_that_is_too_slow_sees_the_gap_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chronicles, "WATCHER_EVENTS_MAX", 2)
    desk, job = Desk(), Desk().job()
    async with desk.chronicle.watch("j", ended=False) as slow:
        desk.publish(job, "a", "b", "c")
        assert (await anext(slow)).sequence == 1
        desk.publish(job, "d")
        desk.chronicle.close("j")
        assert [event.sequence async for event in slow] == [2, 4]
    assert desk.journal.kinds() == ["a", "b", "c", "d"]


async def test_a_watcher_that_is_about_to_leave_costs_nobody_an_event() -> None:
    """Its end of the stream is closed some turns of the loop before it is removed from the list."""
    desk = Desk()
    job = desk.job()
    async with desk.chronicle.watch("j", ended=False) as leaving, desk.chronicle.watch("j", ended=False) as other:
        assert isinstance(leaving, MemoryObjectReceiveStream)
        leaving.close()
        desk.publish(job, "a")
        assert (await anext(other)).kind == "a"
    assert desk.journal.kinds() == ["a"]


async def test_what_no_spawner_keeps_has_a_bound_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawner that is stopped takes nothing: what waits for it must not grow as long as it is."""
    monkeypatch.setattr(chronicles, "UNTOLD_EVENTS_MAX", 3)
    desk, job, asked = Desk(), Desk().job(), list[JobRecord]()
    desk.chronicle.tell_once_kept(lambda _: True, asked.append)
    desk.publish(job, "a", "b", "c")
    assert (desk.journal.kinds(), asked) == ([], [job])
    desk.publish(job, "d")
    assert desk.journal.kinds() == ["a", "b", "c", "d"]
    desk.publish(job, "e")
    assert desk.journal.kinds()[4:] == []


async def test_who_watches_an_ended_job_waits_for_nothing() -> None:
    async with Desk().chronicle.watch("j", ended=True) as events:
        assert [event async for event in events] == []


def test_settling_saves_each_changed_job_once() -> None:
    desk = Desk()
    job = desk.job()
    desk.publish(job, "a", "b")
    desk.chronicle.settle()
    desk.chronicle.settle()
    assert [each.job_id for each in desk.journal.reports] == ["j"]
    desk.chronicle.changed(job)
    desk.chronicle.settle()
    assert len(desk.journal.reports) == 2


def test_a_report_that_cannot_be_made_or_saved_is_one_jobs_loss(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()

    def report(job: JobRecord) -> JobReport:
        if job.spec.job_id == "broken":
            raise AssertionError("no such rank")
        return JobReport(job.spec.job_id, JobState.RUNNING, 5)

    desk.chronicle.attach(report)
    for job_id in ("broken", "sound"):
        desk.publish(desk.job(job_id), "a")
    desk.chronicle.settle()
    assert [each.job_id for each in desk.journal.reports] == ["sound"]
    assert "cannot save the report of job broken" in caplog.messages


async def test_a_journal_that_fails_keeps_no_event_from_its_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, job = Desk(), Desk().job()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(desk.journal, "record", full)
    async with desk.chronicle.watch("j", ended=False) as events:
        desk.publish(job, "a")
        desk.chronicle.close("j")
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
    desk = Desk()
    desk.publish(desk.job(), kind)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (level, f"{kind} happened")
    assert record.__dict__["job_id"] == "j"
