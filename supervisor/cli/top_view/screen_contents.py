"""What does a screen of the live view show of a look: title, rows in the chosen order, events? Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from supervisor.cli import output
from supervisor.cli.supervisor_discovery import FoundJob
from supervisor.cli.top_view import rows
from supervisor.cli.top_view.job_polling import Look
from supervisor.cli.top_view.rows import Row
from supervisor.ports.reports import JobReport


class Contents(Protocol):
    """The contents of one screen. `order` is an index of `orders`, the names of the ways to sort."""

    @property
    def heads(self) -> Sequence[str]: ...

    @property
    def orders(self) -> Sequence[str]: ...

    def title(self, look: Look) -> str: ...

    def rows(self, look: Look, order: int) -> list[Row]: ...

    def events(self, look: Look) -> list[str]: ...

    def checkpoints(self, look: Look) -> str:
        """Returns a line about them, "" for none."""
        ...


class AllJobs:
    """A row for each job that this user may see."""

    heads = rows.JOB_HEADS
    orders = tuple(order.name for order in rows.JOB_ORDERS)

    def title(self, look: Look) -> str:
        live = [job.report for job in look.jobs if not job.report.state.has_ended]
        ranks = [rank for report in live for rank in report.ranks]
        up = sum(rank.state == "running" for rank in ranks)
        return (
            f"{output.plural(len(live), 'job')}, {up}/{output.plural(len(ranks), 'rank')}, "
            f"{output.plural(look.supervisors, 'supervisor')}"
        )

    def rows(self, look: Look, order: int) -> list[Row]:
        """Returns the rows. Of several runs with one name, one is meant by it: a live one, or else the newest.

        Of the others, only those are shown that have ended while the view was open.
        """
        meant = _meant(look)
        key = rows.JOB_ORDERS[order].key
        return [
            rows.job_row(job, look.at_ns, is_earlier=job.run != meant[job.name].run)
            for job in sorted(look.jobs, key=lambda job: key(job.report))
            if job.run == meant[job.name].run or job.run in look.ended
        ]

    def events(self, look: Look) -> list[str]:
        return [rows.event_line(event, with_job=True) for _, event in look.events]

    def checkpoints(self, look: Look) -> str:
        del look
        return ""


class RanksOfJob:
    """A row for each rank of one job."""

    heads = rows.RANK_HEADS
    orders = tuple(order.name for order in rows.RANK_ORDERS)

    def __init__(self, job_id: str) -> None:
        """`job_id`: the job's name, with its user if it is somebody else's."""
        self.job_id = job_id

    def title(self, look: Look) -> str:
        job = self._job(look)
        if job is None:
            return f"{self.job_id}, which is no longer known"
        _, state, cycle, restarts, up, *_ = rows.job_row(job, look.at_ns).cells
        return f"{job.name} {state}, cycle {cycle}, restarts {restarts}, ranks {up}"

    def rows(self, look: Look, order: int) -> list[Row]:
        report = self.report(look)
        ranks = sorted(report.ranks, key=rows.RANK_ORDERS[order].key) if report else []
        return [rows.rank_row(rank, look.at_ns) for rank in ranks]

    def events(self, look: Look) -> list[str]:
        job = self._job(look)
        return [rows.event_line(event, with_job=False) for run, event in look.events if job and run == job.run]

    def checkpoints(self, look: Look) -> str:
        return look.checkpoints

    def nodes(self, look: Look) -> str:
        """Returns a table of the job's nodes."""
        report = self.report(look)
        cells = [rows.node_row(node, report.ranks).cells for node in report.nodes] if report else []
        return output.table(rows.NODE_HEADS, cells, output.TextLayout(None, colours=False))

    def report(self, look: Look) -> JobReport | None:
        """Returns the job's report; None if no supervisor knows the job now."""
        job = self._job(look)
        return job.report if job else None

    def _job(self, look: Look) -> FoundJob | None:
        return _meant(look).get(self.job_id)


def _meant(look: Look) -> dict[str, FoundJob]:
    """Returns the run that each name means: a live one, or else the newest."""
    by_weight = sorted(look.jobs, key=lambda job: (job.is_live, job.report.submitted_at_ns))
    return {job.name: job for job in by_weight}
