"""What is opened so that a job on several nodes is shown as one, and how is it wired?"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.edges.peers.embedded.local_peers import NoNodeRequests
from supervisor.engine.waiting_jobs import WaitingJobs
from supervisor.ports.job_requests import RendezvousRequest
from supervisor.ports.questions import NodeRequests, SectionsTaken, TellSections
from supervisor.ports.reports import RecordedEvent
from supervisor.queries.cluster_job_service import ClusterJobService
from supervisor.queries.event_forwarder import EventForwarder
from supervisor.queries.job_service import JobService
from supervisor.wiring.job_wiring import Base, Jobs

if TYPE_CHECKING:
    from supervisor.edges.peers.elastic.elastic_hosts import ElasticHosts
    from supervisor.engine.section_watch import SectionWatch

WORKERS_STARTED = "workers_started"
SPAWNER_READY = "spawner_ready"
WORKERS_EXPECTED_S = 2.0  # after the spawner is ready; if later, this node is a spare or waits for others


async def until_workers_run(job_service: JobService, job_id: str) -> None:
    """Returns once workers run here, or none are expected soon.

    Journal and control API, which cost CPU that the first workers need, are opened after that.
    """
    async with job_service.subscribe(job_id) as events:
        with anyio.CancelScope() as waiting:
            async for event in events:
                if event.kind == WORKERS_STARTED:
                    return
                if event.kind == SPAWNER_READY:
                    waiting.deadline = anyio.current_time() + WORKERS_EXPECTED_S


Recall = Callable[[str, Sequence[RecordedEvent]], None]  # gets the history of a job that another supervisor began


class Counter(msgspec.Struct, frozen=True):
    """Where people ask about jobs."""

    job_service: ClusterJobService
    recall: Recall | None = None  # None: no job has other nodes


async def open_counter(
    tasks: TaskGroup,
    base: Base,
    jobs: Jobs,
    node_requests: NodeRequests,
    *,
    keep_cordon: Callable[[str], Awaitable[None]] | None,
) -> Counter:
    """Opens where people ask about jobs. Without node_requests, all is known on this node."""
    job_service, view = jobs.job_service, jobs.view
    watch = _section_watch(tasks, base, jobs, node_requests)
    tasks.start_soon(_compare, base.section_jobs, watch)

    def take_sections(job_id: str, by: str, told: TellSections) -> SectionsTaken:
        return watch().hear(job_id, by, told)

    if isinstance(node_requests, NoNodeRequests):
        alone = ClusterJobService(
            job_service=job_service, view=view, node_requests=node_requests, history=base.journal,
            take_sections=take_sections, keep_cordon=keep_cordon, cordon_ends=base.paths.private,
        )  # fmt: skip
        return Counter(alone)
    from supervisor.edges.operators.log_stream_server import LogStreamServer  # Late: a job of one node never needs it.
    from supervisor.edges.peers.embedded.peers_of_jobs import PeersOfJobs

    readers = LogStreamServer(job_service)
    await tasks.start(readers.run)
    of_jobs = node_requests if isinstance(node_requests, PeersOfJobs) else None
    counter = ClusterJobService(
        job_service=job_service, view=view, node_requests=node_requests, history=base.journal,
        take_sections=take_sections, read_logs=readers.answer, keep_cordon=keep_cordon, cordon_ends=base.paths.private,
        lead_for_torchrun=_leading(tasks) if of_jobs is not None else None,
        until_told=of_jobs.until_closed if of_jobs is not None else None,
    )  # fmt: skip
    event_forwarder = EventForwarder(
        unsent=base.unsent, node_requests=node_requests, own_part=view.own_part, record=view.record, clock=base.clock,
        jitter=random.random,
    )  # fmt: skip
    tasks.start_soon(event_forwarder.run)
    tasks.start_soon(base.questions.answer, counter.answer, view.own_name)
    return Counter(counter, base.unsent.recall if of_jobs is not None else None)


def _section_watch(tasks: TaskGroup, base: Base, jobs: Jobs, node_requests: NodeRequests) -> Callable[[], SectionWatch]:
    """Returns what returns the comparison of ranks, which is made for the first that may stamp sections."""
    made: list[SectionWatch] = []

    def watch() -> SectionWatch:
        if not made:
            from supervisor.engine.section_watch import SectionWatch  # Late: few jobs stamp sections.

            made.append(
                SectionWatch(
                    pages=base.workers, node_requests=node_requests, jobs=base.jobs, publisher=base.publisher,
                    saving=jobs.saving, clock=base.clock, own_name=jobs.view.own_name, slow=jobs.slow, tasks=tasks,
                )
            )  # fmt: skip
        return made[0]

    return watch


async def _compare(section_jobs: WaitingJobs, watch: Callable[[], SectionWatch]) -> None:
    """Watches the sections of each job with a rank on this node that may stamp them, until cancelled."""
    while True:
        job_id = await section_jobs.take()
        watch().watch(job_id)


def _leading(tasks: TaskGroup) -> Callable[[RendezvousRequest], Awaitable[bool]]:
    hosts: list[ElasticHosts] = []

    async def lead(rendezvous: RendezvousRequest) -> bool:
        from supervisor.edges.peers.elastic.elastic_hosts import (
            ElasticHosts,  # Late: few nodes run torchrun with our plug-in.
        )

        if not hosts:
            hosts.append(ElasticHosts(tasks))
        return await hosts[0].lead(rendezvous)

    return lead
