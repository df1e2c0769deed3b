"""From when to when do the logs of a job's run count as in use, and when are old ones removed?"""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.config.run_folder import run_name
from supervisor.core.announcements import Announcement, JobEnded
from supervisor.edges.machine.logs.log_retention import LogRetention
from supervisor.engine.job_record import JobRecord


class RunLogs:
    """Marks the logs of live jobs. With `tidies`, removes old ones as jobs come and go; else the caller does that."""

    def __init__(self, retention: LogRetention, jobs: Mapping[str, JobRecord], *, tidies: bool) -> None:
        self._retention = retention
        self._jobs = jobs
        self._tidies = tidies

    def submitted(self, job_id: str) -> None:
        self._retention.claim_soon(_run_of(self._jobs[job_id]))
        self._tidy()

    def announced(self, job: JobRecord, announcement: Announcement) -> None:
        """Releases the logs of a job that has ended. See announcement_followers.py."""
        if isinstance(announcement, JobEnded):
            self._retention.release_soon(_run_of(job))
            self._tidy()

    def _tidy(self) -> None:
        if self._tidies:
            self._retention.tidy_soon()


def _run_of(job: JobRecord) -> str:
    return f"{job.spec.job_id}/{run_name(job.submitted_at_ns)}"
