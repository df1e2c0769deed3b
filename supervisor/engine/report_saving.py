"""When does the journal get a job's report? At the end of a turn that has changed it, and when the job ends."""

from __future__ import annotations

import logging
from collections.abc import Callable

from supervisor.core.announcements import Announcement, JobEnded
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.engine.unsent_events import UnsentEvents
from supervisor.ports.edges import Journal
from supervisor.ports.reports import JobReport

_log = logging.getLogger("holdfast")


class ReportSaving:
    """Saves the reports of jobs that the publisher names. Never blocks and never raises."""

    def __init__(
        self,
        *,
        publisher: EventPublisher,
        journal: Journal,
        unsent: UnsentEvents,
        report: Callable[[JobRecord], JobReport],
    ) -> None:
        """`report` makes a job's report."""
        self._publisher = publisher
        self._journal = journal
        self._unsent = unsent
        self._report = report

    def settle(self) -> None:
        for job_id, job in self._publisher.take_changed().items():
            try:
                self._journal.save(self._report(job))
                if job.spec.nodes is not None:
                    self._unsent.changed(job_id)
            except Exception as error:  # noqa: BLE001 - the bulkhead: one job's report must not affect the others
                _log.error("cannot save the report of job %s", job_id, exc_info=error)

    def announced(self, job: JobRecord, announcement: Announcement) -> None:
        """Saves the last report while its coordinator is still known. See announcement_followers.py."""
        del job
        if isinstance(announcement, JobEnded):
            self.settle()
