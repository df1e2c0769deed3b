"""Which jobs of the supervisor before this one are not taken over yet, and what can people do with them meanwhile?

A supervisor that returns looks for the spawners of its predecessor's jobs. A job whose spawner does not answer, since
somebody has stopped it or it waits in the kernel, runs on and belongs to this supervisor all the same: it is shown, it
can be stopped, and a node that has one is not drained.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable

import anyio
import msgspec

from supervisor.core.facts import JobState
from supervisor.core.process_facts import SilentSpawner
from supervisor.errors import NotNowError
from supervisor.ports.reports import JobNodeReport, JobReport

_log = logging.getLogger("holdfast.jobs")


class StopAsked(msgspec.Struct, frozen=True):
    """The first request to stop the job. `signal`: see ports.JobRequests.stop."""

    reason: str
    signal: int
    grace_s: float | None = None
    of_node: bool = False


class _Silent(msgspec.Struct, frozen=True):
    """A job whose spawner does not answer; see `ExpectedJobs.show`."""

    recorded: JobReport
    silent: Callable[[], SilentSpawner | None]
    make_end: Callable[[], None]


class _Expected(msgspec.Struct):
    settled: anyio.Event = msgspec.field(default_factory=anyio.Event)
    known: anyio.Event = msgspec.field(default_factory=anyio.Event)  # settled, or shown
    shown: _Silent | None = None  # None: it may still answer at once
    stop: StopAsked | None = None


class ExpectedJobs:
    """Use it only from the event loop's thread."""

    def __init__(self, node_name: str) -> None:
        self._node_name = node_name
        self._jobs: dict[str, _Expected] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def expect(self, job_ids: Iterable[str]) -> None:
        """Notes that these jobs are being looked for; `settle` follows for each."""
        for job_id in job_ids:
            self._jobs[job_id] = _Expected()

    def show(self, recorded: JobReport, silent: Callable[[], SilentSpawner | None], end: Callable[[], None]) -> None:
        """Shows a job whose spawner does not answer. `recorded`: its last state. `silent` returns the spawner's state.

        `end` makes the spawner go on, or kills it; it is called once at most.
        """
        job = self._jobs[recorded.job_id]
        job.shown = _Silent(recorded, silent, end)
        job.known.set()
        _log.warning("job %s: %s", recorded.job_id, self._look(job.shown, job.stop).reason)
        if job.stop is not None:
            end()

    def settle(self, job_id: str) -> None:
        """Notes that the job was taken over or has ended."""
        job = self._jobs.pop(job_id)
        job.known.set()
        job.settled.set()

    async def until_known(self, job_id: str) -> None:
        """Waits until the job was taken over or is known not to answer."""
        if (job := self._jobs.get(job_id)) is not None:
            await job.known.wait()

    def job_ids(self) -> list[str]:
        """Returns the jobs that were not taken over yet, shown or not."""
        return list(self._jobs)

    def shown(self) -> list[JobReport]:
        return [self._look(job.shown, job.stop) for job in self._jobs.values() if job.shown is not None]

    def report(self, job_id: str) -> JobReport | None:
        job = self._jobs.get(job_id)
        return self._look(job.shown, job.stop) if job is not None and job.shown is not None else None

    def _look(self, shown: _Silent, stop: StopAsked | None) -> JobReport:
        return _unreached(shown.recorded, shown.silent(), stop, node=self._node_name)

    def stop(
        self, job_id: str, reason: str, signal: int, grace_s: float | None = None, *, of_node: bool = False
    ) -> bool:
        """Asks for its end. Returns False for a job that is not looked for."""
        job = self._jobs.get(job_id)
        if job is None:
            return False
        if job.stop is None:
            job.stop = StopAsked(reason, signal, grace_s, of_node)
            if job.shown is not None:
                job.shown.make_end()
        return True

    def stop_asked(self, job_id: str) -> StopAsked | None:
        job = self._jobs.get(job_id)
        return job.stop if job is not None else None

    async def stop_all(self, reason: str) -> None:
        """Asks for the end of all of them; returns once each was taken over or has ended."""
        expected = list(self._jobs.items())
        for job_id, _ in expected:
            self.stop(job_id, reason, 0, of_node=True)
        for _, job in expected:
            await job.settled.wait()

    def check_not_expected(self, job_id: str, verb: str) -> None:
        """Raises NotNowError for a job that can't be reached."""
        report = self.report(job_id)
        if report is not None:
            raise NotNowError(f"cannot {verb} job {job_id}: {report.reason}")


def _unreached(known: JobReport, spawner: SilentSpawner | None, stop: StopAsked | None, *, node: str) -> JobReport:
    """Returns what people see of a job that is not taken over. `known`: as it was recorded last."""
    ranks = tuple(each.without_ages() for each in known.ranks)
    known = msgspec.structs.replace(known, ranks=ranks, supervisor_pid=os.getpid(), stragglers=(), script="")
    if stop is not None:
        reason = f"a stop was requested ({stop.reason}), and its spawner has not answered yet"
        known = msgspec.structs.replace(known, state=JobState.STOPPING)
    elif spawner is None:
        reason = "its spawner is being taken over"
    else:
        remedy = f"kill -CONT {spawner.pid} continues it, and holdfast stop {known.job_id} ends the job"
        reason = (
            f"its spawner (pid {spawner.pid}) does not answer: it {spawner.does}; supervisor {os.getpid()} has not "
            f"taken the job over, and its ranks run unwatched; {remedy}"
        )
    return _marked(msgspec.structs.replace(known, reason=reason), spawner, reason, node)


def with_stopped(report: JobReport, pid: int, *, node: str) -> JobReport:
    """Returns the report of a job that was taken over, and whose spawner somebody has stopped."""
    spawner = SilentSpawner(pid, "T", "is stopped (state T)")
    reason = (
        f"its spawner (pid {spawner.pid}) {spawner.does}, so nothing can be started or ended; kill -CONT {spawner.pid} "
        f"continues it, and so does holdfast stop {report.job_id}"
    )
    whole = f"{report.reason}; {reason}" if report.reason else reason
    return _marked(msgspec.structs.replace(report, reason=whole), spawner, reason, node)


def _marked(report: JobReport, spawner: SilentSpawner | None, reason: str, node: str) -> JobReport:
    """Returns the report with the spawner at its node."""
    if spawner is None:
        return report
    nodes = report.nodes or (JobNodeReport(node, "ready"),)
    marked = tuple(
        msgspec.structs.replace(
            each, reason=each.reason or reason, unreachable_pid=spawner.pid, unreachable_state=spawner.state
        )
        if len(nodes) == 1 or each.name == node
        else each
        for each in nodes
    )
    return msgspec.structs.replace(report, nodes=marked)
