"""What decides, performs, keeps and shows this supervisor's jobs, and what does each of these get?

They are made in this order, each from what was made before it: edges post into the inbox and followers hear
announcements, so nothing needs to know what is made after it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

import msgspec
from anyio.abc import TaskGroup

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders.worker_tokens import WorkerTokens
from supervisor.edges.machine.gpus.node_gpus import NodeGpus
from supervisor.edges.machine.health.check_probes import NodeChecks
from supervisor.edges.machine.job_files.untrusted_reads import JobFiles
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.edges.workers.channel.worker_server import WorkerServer
from supervisor.edges.workers.stacks.stack_collector import StackCollector
from supervisor.engine.action_performer import Edges, EnginePerformer
from supervisor.engine.announcement_followers import Follow
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.engine_loop import Engine
from supervisor.engine.engine_state import EngineState
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.engine.known_stragglers import KnownStragglers
from supervisor.engine.node_stacks import NodeStacks
from supervisor.engine.report_queue import ReportQueue
from supervisor.engine.report_saving import ReportSaving
from supervisor.engine.unsent_events import UnsentEvents
from supervisor.engine.waiting_jobs import WaitingJobs
from supervisor.engine.worker_plan import WorkerPlanner
from supervisor.ports.edges import Meetings, Spawners
from supervisor.ports.questions import PeersAndNodeRequests
from supervisor.queries.cluster_view import ClusterView
from supervisor.queries.job_service import JobService
from supervisor.queries.question_inbox import QuestionInbox
from supervisor.wiring.supervisor_paths import SupervisorPaths

if TYPE_CHECKING:
    from supervisor.engine.recovery.turn_outbox import TurnOutbox


class Base(msgspec.Struct, frozen=True):
    """The parts that are made before anything is opened, since they need nothing that is made later."""

    paths: SupervisorPaths
    clock: Clock
    inbox: EngineInbox
    engine_state: EngineState
    journal: Journal
    publisher: EventPublisher
    unsent: UnsentEvents
    unkept: WaitingJobs | None  # jobs that a spawner must keep between two turns; None: no supervisor returns
    questions: QuestionInbox
    workers: WorkerServer
    section_jobs: WaitingJobs  # of which a rank may stamp sections
    tokens: WorkerTokens
    claims: JobClaims
    jobs: dict[str, JobRecord]


class Jobs(msgspec.Struct, frozen=True):
    job_service: JobService
    view: ClusterView
    slow: KnownStragglers
    saving: ReportSaving
    performer: EnginePerformer
    outbox: TurnOutbox | None  # None: no supervisor returns
    engine: Engine


def wired(
    base: Base,
    *,
    peers: PeersAndNodeRequests,
    spawners: Spawners,
    checks: NodeChecks,
    gpus: NodeGpus,
    tasks: TaskGroup,
    prepare: Callable[[str], None],
    followed_by: Sequence[Follow],
    ended: Sequence[Follow],
) -> Jobs:
    """Makes what runs jobs. `tasks` serve their spawners. `prepare`: see JobService.

    `followed_by` hear an announcement first, and `ended` last, after the job's record is closed.
    """

    def start_soon(work: Callable[[], Coroutine[object, object, None]]) -> None:
        tasks.start_soon(work)

    node_requests, reports = peers.node_requests, dict[str, ReportQueue]()
    meetings = node_requests if isinstance(node_requests, Meetings) else None
    outbox = None
    if base.unkept is not None:
        from supervisor.engine.recovery.turn_outbox import TurnOutbox  # Late: a private supervisor never returns.

        outbox = TurnOutbox(
            inbox=base.inbox, engine_state=base.engine_state, jobs=base.jobs, publisher=base.publisher,
            clock=base.clock, reports=reports, unkept=base.unkept, meetings=meetings,
        )  # fmt: skip
    stacks = NodeStacks(workers=base.workers, stacks=StackCollector())
    slow = KnownStragglers(peers.leads)
    job_service = JobService(
        inbox=base.inbox, engine_state=base.engine_state, stacks=stacks, peers=peers, jobs=base.jobs,
        publisher=base.publisher, workers=base.workers, clock=base.clock, claims=base.claims,
        log_dir=str(base.paths.log_dir), prepare=prepare, slow=slow, meetings=meetings,
        keep=outbox.keep_now if outbox is not None else None,
    )  # fmt: skip
    view = ClusterView(
        job_service=job_service, engine_state=base.engine_state, publisher=base.publisher, unsent=base.unsent,
        jobs=base.jobs, clock=base.clock,
    )  # fmt: skip
    saving = ReportSaving(publisher=base.publisher, journal=base.journal, unsent=base.unsent, report=view.saved)
    edges = Edges(
        clock=base.clock,
        workers=base.workers,
        spawners=spawners,
        tokens=base.tokens,
        files=JobFiles(),
        checks=checks,
        gpus=gpus,
        peers=peers,
        planner=WorkerPlanner(console=base.paths.console, worker_socket=str(base.paths.worker_socket)),
    )
    performer = EnginePerformer(
        edges=edges, jobs=base.jobs, publisher=base.publisher, inbox=base.inbox, engine_state=base.engine_state,
        stacks=stacks, start_soon=start_soon, reports=reports, saving=saving, outbox=outbox,
        followed_by=(*followed_by, view.announced, job_service.announced, saving.announced, *ended),
    )  # fmt: skip
    engine = Engine(
        clock=base.clock, inbox=base.inbox, engine_state=base.engine_state, performer=performer, jitter=random.random
    )
    return Jobs(job_service, view, slow, saving, performer, outbox, engine)
