"""What is opened so that a job on several nodes is shown as one, and how is it wired?"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from supervisor.edges.peers.embedded.local_peers import NoColleagues
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.engine.loop import Engine
from supervisor.ports.edges import Clock
from supervisor.ports.job_requests import JobHistory, RendezvousWish
from supervisor.ports.questions import Colleagues
from supervisor.ports.reports import RecordedEvent
from supervisor.queries.cluster_job_service import ClusterJobService
from supervisor.queries.cluster_view import ClusterView
from supervisor.queries.event_forwarder import EventForwarder
from supervisor.queries.job_service import JobService

if TYPE_CHECKING:
    from supervisor.edges.peers.elastic.elastic_hosts import ElasticHosts
    from supervisor.edges.workers.channel.worker_server import WorkerServer
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


async def open_counter(
    tasks: TaskGroup,
    *,
    job_service: JobService,
    engine: Engine,
    publisher: EventPublisher,
    jobs: Mapping[str, JobRecord],
    clock: Clock,
    colleagues: Colleagues,
    history: JobHistory,
    workers: WorkerServer,
) -> ClusterJobService:
    """Yields where people ask about jobs. Without colleagues it is this node's job service itself."""
    view = ClusterView(job_service=job_service, engine=engine, publisher=publisher, jobs=jobs, clock=clock)
    counter = ClusterJobService(job_service=job_service, view=view, colleagues=colleagues, history=history)

    def open_watch() -> SectionWatch:
        from supervisor.engine.section_watch import SectionWatch  # Late: few jobs stamp sections.

        return SectionWatch(
            pages=workers, colleagues=colleagues, jobs=jobs, publisher=publisher, clock=clock,
            own_name=view.own_name, tasks=tasks,
        )  # fmt: skip

    _compare(workers, job_service, counter, open_watch)
    if isinstance(colleagues, NoColleagues):
        return counter
    from supervisor.edges.operators.log_readers import LogReaders  # Late: a job of one node never needs it.
    from supervisor.edges.peers.embedded.peers_of_jobs import PeersOfJobs

    event_forwarder = EventForwarder(colleagues=colleagues, own_part=view.own_part, clock=clock, jitter=random.random)
    readers = LogReaders(counter)
    await tasks.start(readers.run)
    await tasks.start(event_forwarder.run)
    counter.read_logs = readers.answer
    colleagues.answer_with(counter.answer)
    engine.on_node_lost = view.note_lost
    publisher.attach(view.saved)

    def note(event: RecordedEvent) -> None:
        if view.is_shared(event.job_id):
            event_forwarder.note(event)

    def changed(job_id: str) -> None:
        if view.is_shared(job_id):
            event_forwarder.changed(job_id)

    publisher.on_recorded = note
    publisher.on_changed = changed
    if isinstance(colleagues, PeersOfJobs):
        job_service.meet_by(colleagues)
        job_service.on_taken_back = event_forwarder.recall
        colleagues.tell_last_news = event_forwarder.tell_last
        colleagues.on_closed = event_forwarder.forget
        counter.until_told = colleagues.until_closed
        counter.lead_for_torchrun = _leading(tasks)
    return counter


def _compare(
    workers: WorkerServer, job_service: JobService, counter: ClusterJobService, open_watch: Callable[[], SectionWatch]
) -> None:
    """Starts the comparison of ranks once one of them, on any node of a job, may stamp sections."""
    opened: list[SectionWatch] = []

    def watch() -> SectionWatch:
        if not opened:
            opened.append(open_watch())
            job_service.stragglers = opened[0].named
        return opened[0]

    workers.on_sections = lambda job_id: watch().watch(job_id)
    counter.take_sections = lambda job_id, by, told: watch().hear(job_id, by, told)


def _leading(tasks: TaskGroup) -> Callable[[RendezvousWish], Awaitable[bool]]:
    hosts: list[ElasticHosts] = []

    async def lead(wish: RendezvousWish) -> bool:
        from supervisor.edges.peers.elastic.elastic_hosts import (
            ElasticHosts,  # Late: few nodes run torchrun with our plug-in.
        )

        if not hosts:
            hosts.append(ElasticHosts(tasks))
        return await hosts[0].lead(wish)

    return lead
