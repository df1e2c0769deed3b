"""What is wired so that an attribution service is asked about the cycles of a job that this supervisor leads?

All of it is loaded with the first such job, so other jobs do not pay for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from functools import partial

import anyio
from anyio.abc import TaskGroup

from supervisor.config.attribution_settings import submitter
from supervisor.core.announcements import (
    Announcement,
    CycleBegan,
    CycleEnded,
    JobEnded,
    LeadChanged,
    NodeLost,
    PartsChanged,
)
from supervisor.core.attribution import attribution_requests
from supervisor.core.cluster.cluster_messages import JobForbidden, Reported
from supervisor.edges.services.attribution_client import AttributionClient
from supervisor.edges.services.managed_attribution import ManagedAttribution
from supervisor.engine.attributed_job import AttributedJob, Dependencies
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.errors import ConfigurationError
from supervisor.ports.edges import Clock

CLOSE_TIMEOUT_S = 16.0  # the last words about jobs that have ended, and the end of their services, are bounded

_log = logging.getLogger("holdfast")


class Attributions:
    """Asks attribution services about all jobs of this supervisor."""

    def __init__(self, tasks: TaskGroup, inbox: EngineInbox, publisher: EventPublisher, clock: Clock) -> None:
        self._tasks = tasks
        self._inbox = inbox
        self._publisher = publisher
        self._clock = clock
        self._asked: dict[str, AttributedJob] = {}
        self._ended = anyio.Event()

    def announced(self, job: JobRecord, announcement: Announcement) -> None:
        """Asks about the cycle that the job's coordinator announces. Never blocks."""
        match announcement:
            case CycleBegan(number):
                self._of(job, may_end_job=number == 0).hear(attribution_requests.CycleBegan(number))
            case CycleEnded(number, nodes):
                self._of(job).hear(attribution_requests.CycleEnded(number, nodes))
            case LeadChanged(leads=True, cycle=number):
                if number >= 0:  # begun elsewhere, or by the supervisor before this one
                    self._of(job)
            case LeadChanged():
                asked = self._asked.get(job.spec.job_id)
                if asked is not None and job.verdict is None:  # else the job has ended, and nobody leads it
                    asked.dismiss()
            case PartsChanged() | NodeLost() | JobEnded():
                pass

    def _of(self, job: JobRecord, *, may_end_job: bool = False) -> AttributedJob:
        asked = self._asked.get(job.spec.job_id)
        if asked is None or asked.job is not job or asked.is_dismissed:
            asked = self._begin(job, may_end_job=may_end_job)
        return asked

    def _begin(self, job: JobRecord, *, may_end_job: bool) -> AttributedJob:
        """Starts to ask about a job. `may_end_job`: an unreadable key for the job's own service ends the job."""
        job_id, settings = job.spec.job_id, job.spec.attribution
        dependencies = Dependencies(
            clock=self._clock,
            watch=partial(self._publisher.watch, job_id, ended=job.ended_at_ns is not None),
            publish=partial(self._publisher.publish, job),
            forbid=partial(self._forbid, job_id),
        )
        who = submitter(job.environment)
        if settings.is_managed:
            asked = AttributedJob(job, dependencies, None)
            managed = ManagedAttribution(settings, job.spec.logs.cycle_prefix, job.environment, who, self._clock)
            self._tasks.start_soon(self._serve, asked, partial(self._keep, asked, managed, may_end_job))
        else:
            asked = AttributedJob(job, dependencies, AttributionClient(settings.endpoint, who))
            self._tasks.start_soon(self._serve, asked, None)
        self._asked[job_id] = asked
        return asked

    async def _keep(self, asked: AttributedJob, managed: ManagedAttribution, may_end_job: bool) -> None:
        def goes_down(reason: str) -> None:
            asked.hear(attribution_requests.ServiceDown(reason))

        try:
            await managed.check_key()
        except ConfigurationError as error:
            if may_end_job:
                self._forbid(asked.job.spec.job_id, str(error), error.exit_code)
            goes_down(str(error))
            return
        await managed.run(asked.comes_up, goes_down)

    def _forbid(self, job_id: str, reason: str, exit_code: int | None = None) -> None:
        self._inbox.post(Reported(job_id, JobForbidden(reason, exit_code)))

    async def _serve(self, asked: AttributedJob, keep: Callable[[], Coroutine[object, object, None]] | None) -> None:
        """Serves one job. `keep` runs the job's own service for as long as the job is asked about."""
        job_id = asked.job.spec.job_id
        try:
            async with anyio.create_task_group() as tasks:
                if keep is not None:
                    tasks.start_soon(keep)
                await asked.run()
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - the bulkhead: the job must not end because nobody can be asked
            _log.error("the attribution service is no longer asked about job %s", job_id, exc_info=error)
        finally:
            if self._asked.get(job_id) is asked:
                del self._asked[job_id]
            self._ended.set()

    async def aclose(self) -> None:
        """Waits, for a bounded time, for the last words about jobs that have ended."""
        with anyio.move_on_after(CLOSE_TIMEOUT_S):
            while self._asked:
                self._ended = anyio.Event()
                await self._ended.wait()
