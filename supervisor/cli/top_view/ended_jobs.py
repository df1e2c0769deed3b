"""Which jobs that ended while the live view is open stay on the screen, and how many of them?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from supervisor.cli.supervisor_discovery import FoundJob, Run

ENDED_KEPT = 10  # the newest ones


class EndedJobs:
    """The jobs that have ended since an earlier look: people want to see how their job has ended."""

    def __init__(self) -> None:
        self._live: set[Run] = set()  # in the last look, or missing since a look that was not complete
        self._jobs: dict[Run, FoundJob] = {}

    def __contains__(self, run: Run) -> bool:
        return run in self._jobs

    def note(
        self, jobs: Sequence[FoundJob], list_all: Callable[[], Sequence[FoundJob]], *, is_complete: bool
    ) -> list[FoundJob]:
        """Notes what is live now. Returns the jobs that have ended since the last look.

        `list_all` lists all jobs, ended ones too. Unless the look `is_complete`, a supervisor that hangs may still have
        a job that is missing: one that has not ended is looked for again.
        """
        live = {job.run for job in jobs if job.is_live}
        gone = self._live - live
        ended = [job for job in (list_all() if gone else ()) if job.run in gone and job.report.state.has_ended]
        self._live = live if is_complete else live | (gone - {job.run for job in ended})
        # The supervisor's channel is closed by the next look.
        self._jobs |= {job.run: FoundJob(job.report, None, job.uid) for job in ended}
        while len(self._jobs) > ENDED_KEPT:
            self._jobs.pop(next(iter(self._jobs)))
        return ended

    def beside(self, jobs: Sequence[FoundJob]) -> list[FoundJob]:
        """Returns the ended jobs that are to be shown beside these, the newest first."""
        shown = {job.run for job in jobs}
        return [job for run, job in reversed(self._jobs.items()) if run not in shown]
