"""What is wired so that cycles, and the supervisor's words about them, are written where the user wants them?

This covers the records of cycles (--ft-cycle-info-dir) and the supervisor's words (--ft-nvrx-logfile). An attribution
service (--ft-attribution-endpoint) and a log server follow a job in the same way, by what its machines announce.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from anyio.abc import TaskGroup

from supervisor.config.job_logs import log_sender_socket
from supervisor.core.announcements import Announcement, JobEnded
from supervisor.edges.machine.logs.cycle_info import CycleInfoFiles
from supervisor.edges.machine.logs.job_log import JobLog, JobLogPlace
from supervisor.engine.announcement_followers import Follow
from supervisor.engine.cycle_records import CycleRecords
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.ports.edges import Clock
from supervisor.wiring.supervisor_paths import SupervisorPaths

if TYPE_CHECKING:
    from supervisor.wiring.job_attribution import Attributions


def open_job_log(stack: contextlib.AsyncExitStack, paths: SupervisorPaths, jobs: Mapping[str, JobRecord]) -> JobLog:
    """Opens the file, or the way to the log server, of each job that wants it. Closing `stack` closes them."""

    def place_of(job_id: str) -> JobLogPlace:
        job = jobs.get(job_id)
        if job is None:
            return JobLogPlace()
        sender_socket = log_sender_socket(str(paths.worker_socket), job_id) if job.spec.has_log_server else ""
        return JobLogPlace(job.spec.logs.supervisor_log, sender_socket, job.submitted_at_ns)

    words = stack.enter_context(contextlib.closing(JobLog(place_of, paths.node_name)))
    words.open()
    return words


def follow(
    stack: contextlib.AsyncExitStack,
    inbox: EngineInbox,
    publisher: EventPublisher,
    clock: Clock,
    tasks: TaskGroup,
) -> tuple[Follow, ...]:
    """Returns who follows the jobs. Closing `stack` writes what is left, for a bounded time."""
    files = stack.enter_context(contextlib.closing(CycleInfoFiles()))
    attributions: list[Attributions] = []

    def of_all_jobs() -> Attributions:
        if not attributions:
            from supervisor.wiring.job_attribution import Attributions  # Late: few jobs ask for it.

            attributions.append(Attributions(tasks, inbox, publisher, clock))
            stack.push_async_callback(attributions[0].aclose)
        return attributions[0]

    def attribute(job: JobRecord, announcement: Announcement) -> None:
        if job.spec.attribution.is_asked and (attributions or not isinstance(announcement, JobEnded)):
            of_all_jobs().announced(job, announcement)

    return CycleRecords(clock, files.keep).announced, attribute
