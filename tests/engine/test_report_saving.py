"""A changed job's report is saved once, with its last one, and a failure costs no other job its own."""

from __future__ import annotations

import anyio
import pytest

from supervisor.config import JobSpec
from supervisor.core.announcements import CycleBegan, JobEnded
from supervisor.core.facts import JobState, Verdict
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.engine.report_saving import ReportSaving
from supervisor.engine.unsent_events import UnsentEvents
from supervisor.ports.reports import JobReport
from tests.engine.world import FakeJournal, SetClock
from tests.queries.shared_job import SHARED

LIMIT_S = 10.0


class Saving:
    """The reports of jobs, of which the one called "broken" can't be made."""

    def __init__(self) -> None:
        self.journal, self.unsent = FakeJournal(), UnsentEvents()
        self.publisher = EventPublisher(
            journal=self.journal, clock=SetClock(), node_name="n0", unsent=self.unsent, unkept=None
        )
        self.saving = ReportSaving(
            publisher=self.publisher, journal=self.journal, unsent=self.unsent, report=self._report
        )

    def _report(self, job: JobRecord) -> JobReport:
        if job.spec.job_id == "broken":
            raise AssertionError("no such rank")
        return JobReport(job.spec.job_id, JobState.RUNNING, 5)

    def saved(self) -> list[str]:
        return [each.job_id for each in self.journal.reports]


def record(job_id: str) -> JobRecord:
    return JobRecord(JobSpec(job_id, ("t.py",)), {}, 5, "/logs")


def test_each_changed_job_is_saved_once() -> None:
    world, job = Saving(), record("j")
    world.publisher.changed(job)
    world.publisher.changed(job)
    world.saving.settle()
    world.saving.settle()
    assert world.saved() == ["j"]
    world.publisher.changed(job)
    world.saving.settle()
    assert world.saved() == ["j", "j"]


def test_a_report_that_cannot_be_made_or_saved_is_one_jobs_loss(caplog: pytest.LogCaptureFixture) -> None:
    world = Saving()
    for job_id in ("broken", "sound"):
        world.publisher.changed(record(job_id))
    world.saving.settle()
    assert world.saved() == ["sound"]
    assert "cannot save the report of job broken" in caplog.messages


def test_a_job_that_ends_is_saved_before_its_turn_is_over() -> None:
    world, job = Saving(), record("j")
    world.publisher.changed(job)
    world.saving.announced(job, CycleBegan(0, ("n0",)))
    assert world.saved() == []
    world.saving.announced(job, JobEnded(Verdict(JobState.SUCCEEDED, 0, "all ranks ended")))
    assert world.saved() == ["j"]


async def test_the_leader_of_a_job_with_other_nodes_gets_the_report_too() -> None:
    world = Saving()
    for job in (record("alone"), JobRecord(SHARED, {}, 5, "/logs")):
        world.publisher.changed(job)
    world.saving.settle()
    with anyio.fail_after(LIMIT_S):
        assert await world.unsent.next_changed() == SHARED.job_id
