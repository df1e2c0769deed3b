"""Which edges are opened, in which order, and how are they wired, for a node's daemon and for one private run?

This is the only place that knows all rooms. Every edge is one task in one tree; the last one opened is closed first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal as signals
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.config.resolve import RunRequest
from supervisor.config.run_folder import run_name
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders import private_dir, private_registry, socket_dir, state_dir
from supervisor.edges.machine.folders.token_files import TokenFiles
from supervisor.edges.machine.gpus.node_gpus import NodeGpus
from supervisor.edges.machine.health.node_checks import NodeChecks
from supervisor.edges.machine.job_files.untrusted_reads import JobFiles
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.logs.log_retention import QUIET_S, LogRetention
from supervisor.edges.machine.logs.supervisor_log import SupervisorLog
from supervisor.edges.machine.own_process import signals as signal_edge
from supervisor.edges.machine.own_process.open_files import RaisedLimit
from supervisor.edges.machine.own_process.threads import in_thread_if_any
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.edges.operators.control_gate import Api, ControlGate
from supervisor.edges.peers.embedded.local_peers import LocalPeers
from supervisor.edges.workers.channel.worker_server import WorkerServer
from supervisor.edges.workers.spawner.spawner_keeper import SpawnerKeeper
from supervisor.edges.workers.spawner.spawner_process import SpawnerProcess
from supervisor.edges.workers.stacks.stacks import StackCollector
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.followers import Follow
from supervisor.engine.job_record import JobRecord
from supervisor.engine.loop import Engine
from supervisor.engine.output_plan import Console
from supervisor.engine.perform import Edges, EnginePerformer
from supervisor.engine.worker_plan import WorkerPlanner
from supervisor.errors import HoldfastError, one_refusal
from supervisor.ports.edges import Peers, Post, Spawners
from supervisor.ports.questions import PeersAndColleagues
from supervisor.ports.reports import JobReport
from supervisor.queries.cluster_job_service import ClusterJobService
from supervisor.queries.job_service import JobService
from supervisor.wiring import cycle_recording, log_server, shared_jobs
from supervisor.wiring.place import Place

if TYPE_CHECKING:
    from supervisor.wiring.returning import Returning

SPAWNERS_END_TIMEOUT_S = 10.0  # the longest wait for ended spawners at the close

_log = logging.getLogger("holdfast")


class Running(msgspec.Struct, frozen=True):
    """A supervisor that takes jobs."""

    place: Place
    job_service: JobService
    counter: ClusterJobService  # answers people's questions
    journal: Journal
    retention: LogRetention
    tasks: TaskGroup
    returning: Returning | None = None  # what a dead predecessor left; None: private, there was none


@contextlib.asynccontextmanager
async def open_supervisor(
    place: Place,
    *,
    early: Sequence[SpawnerProcess] = (),
    claims: JobClaims | None = None,
    make_spawners: Callable[[WorkerServer, TokenFiles], Spawners] | None = None,
    log_handlers: Sequence[logging.Handler] = (),
    open_peers: Callable[[Post], contextlib.AbstractAsyncContextManager[PeersAndColleagues]] | None = None,
) -> AsyncGenerator[Running]:
    """Opens everything but the control API, ready to take jobs. Raises HoldfastError if it cannot be opened.

    `early`: spawners that already run, one per first job, whose ids `claims` hold. `make_spawners` replaces
    our own. `log_handlers` get everything that is logged, including events.
    `open_peers` opens the connection to the other nodes; None: there are none.
    At the end all edges are closed, innermost first. The caller has ended the jobs before.
    """
    clock = Clock()
    log = SupervisorLog(place.log_dir, names_jobs=not place.private, others=log_handlers)
    log.open()
    if place.warning:
        _log.warning("%s", place.warning)
    retention = LogRetention(place.log_dir, place.log_limits, quiet_s=max(QUIET_S, place.supervisor_return_timeout_s))
    limit = RaisedLimit()
    journal = Journal(place.state_dir, on_alarm=partial(_log.warning, "%s"), starts_thread=True)
    engine = Engine(clock=clock, node_name=place.node_name, jitter=random.random)
    workers = WorkerServer(socket_path=place.worker_socket, events=engine, clock=clock)
    tokens = TokenFiles(socket_dir.tokens_dir(place.socket_dir))
    publisher = EventPublisher(journal=journal, clock=clock, node_name=place.node_name)
    jobs: dict[str, JobRecord] = {}
    claims = claims or JobClaims()
    try:
        async with one_refusal(), anyio.create_task_group() as tasks:
            await tasks.start(workers.run)
            local_peers = contextlib.nullcontext(LocalPeers(node_name=place.node_name, post=engine.post))
            peers_opened = local_peers if open_peers is None else open_peers(engine.post)
            funnels, spawning = log_server.opened(place, jobs, publisher.publish), _spawner_tasks()
            claiming = contextlib.AsyncExitStack()
            async with claiming as claimed, funnels as funnel, peers_opened as peers, spawning as spawner_tasks:
                gpus = NodeGpus(worker_socket=str(place.worker_socket))
                checks = claimed.enter_context(contextlib.closing(NodeChecks(gpus.probes())))
                claimed.push_async_callback(gpus.aclose)
                claimed.callback(tokens.remove_all)  # Once the directory is released, they are another supervisor's.
                spawners = make_spawners(workers, tokens) if make_spawners else _keeper(place, limit, claims, early)
                followers = cycle_recording.follow(claimed, jobs, engine, publisher, clock, tasks, funnel, peers)
                job_service, performer = _wire(
                    place, clock, engine, workers, spawners, peers,
                    tokens, checks, publisher, jobs, claims, spawner_tasks, gpus, followers,
                )  # fmt: skip
                _keep_logs(retention, jobs, job_service, performer, funnel, tidies=not place.private)
                await tasks.start(engine.run)
                counter = await shared_jobs.open_counter(
                    tasks, job_service=job_service, engine=engine, publisher=publisher, jobs=jobs, clock=clock,
                    colleagues=peers.colleagues, history=journal, workers=workers,
                )  # fmt: skip
                returning = None
                if isinstance(spawners, SpawnerKeeper) and spawners.return_folder is not None:
                    from supervisor.wiring.returning import Returning  # Late: a private supervisor does not come back.

                    returning = Returning(
                        spawners.return_folder, clock, engine, job_service, performer, publisher, journal, workers,
                        tokens, claims, spawners,
                    )  # fmt: skip
                yield Running(place, job_service, counter, journal, retention, tasks, returning)
            tasks.cancel_scope.cancel()
    finally:
        claims.close()
        retention.close()
        journal.close()
        limit.restore()
        log.close()


def _keeper(place: Place, limit: RaisedLimit, claims: JobClaims, early: Sequence[SpawnerProcess]) -> SpawnerKeeper:
    return SpawnerKeeper(
        private=place.private,
        output_dir=None if place.private else place.log_dir,
        supervisor_return_timeout_s=place.supervisor_return_timeout_s,
        open_files=limit.before_and_now,
        claims=claims,
        early=list(early),
        return_folder=None if place.private else place.socket_dir / socket_dir.SPAWNERS,
    )


@contextlib.asynccontextmanager
async def _spawner_tasks() -> AsyncGenerator[TaskGroup]:
    """Yields the task group of spawners, and waits a bounded time for those that were told to end."""
    async with anyio.create_task_group() as tasks:
        yield tasks
        tasks.cancel_scope.deadline = anyio.current_time() + SPAWNERS_END_TIMEOUT_S


def _wire(
    place: Place,
    clock: Clock,
    engine: Engine,
    workers: WorkerServer,
    spawners: Spawners,
    peers: Peers,
    tokens: TokenFiles,
    checks: NodeChecks,
    publisher: EventPublisher,
    jobs: dict[str, JobRecord],
    claims: JobClaims,
    tasks: TaskGroup,
    gpus: NodeGpus,
    followers: Sequence[Follow],
) -> tuple[JobService, EnginePerformer]:
    planner = WorkerPlanner(console=place.console, worker_socket=str(place.worker_socket))
    edges = Edges(
        clock=clock,
        workers=workers,
        spawners=spawners,
        stacks=StackCollector(),
        tokens=tokens,
        files=JobFiles(),
        checks=checks,
        gpus=gpus,
        peers=peers,
        planner=planner,
    )

    def start_soon(work: Callable[[], Coroutine[object, object, None]]) -> None:
        tasks.start_soon(work)

    performer = EnginePerformer(
        edges=edges, jobs=jobs, publisher=publisher, engine=engine, start_soon=start_soon, followed_by=followers,
        keeps=not place.private,
    )  # fmt: skip
    engine.attach(performer)
    job_service = JobService(
        engine=engine,
        performer=performer,
        jobs=jobs,
        publisher=publisher,
        workers=workers,
        clock=clock,
        claims=claims,
        log_dir=str(place.log_dir),
    )
    performer.on_finished = job_service.close_job
    return job_service, performer


def _keep_logs(
    retention: LogRetention,
    jobs: dict[str, JobRecord],
    job_service: JobService,
    performer: EnginePerformer,
    funnel: log_server.LogFunnel,
    *,
    tidies: bool,
) -> None:
    """Marks the logs of live jobs. With `tidies`, removes old ones as jobs come and go; else the caller does that."""

    def run_of(job_id: str) -> str:
        return f"{job_id}/{run_name(jobs[job_id].submitted_at_ns)}"

    def submitted(job_id: str) -> None:
        retention.claim_soon(run_of(job_id))
        funnel.submitted(job_id)
        if tidies:
            retention.tidy_soon()

    def finished(job_id: str) -> None:
        job_service.close_job(job_id)
        retention.release_soon(run_of(job_id))
        if tidies:
            retention.tidy_soon()

    job_service.on_submitted = submitted
    performer.on_finished = finished


async def run_job(
    request: RunRequest,
    folder: Path,
    early: SpawnerProcess,
    claims: JobClaims,
    log_handlers: Sequence[logging.Handler] = (),
) -> JobReport:
    """Runs one job in a private supervisor in `folder` (0700, the caller's). Returns the ended job.

    `early`: the job's spawner, started while this module was still being loaded; `claims` hold the job's id.
    """
    console = Console(stdout_is_tty=os.isatty(1), stderr_is_tty=os.isatty(2))
    state = state_dir.choose(request.state_dir, folder)
    place = Place(folder, state.path, console, private=True, log_limits=request.log_limits, warning=state.warning)
    spec, open_peers = request.spec, None
    if spec.nodes is not None:
        place = msgspec.structs.replace(place, node_name=spec.nodes.name)
        open_peers = peers_of_jobs(place)
    async with open_supervisor(
        place,
        early=(early,),
        claims=claims,
        log_handlers=log_handlers,
        open_peers=open_peers,
    ) as running:
        with registered(folder):
            await running.job_service.submit(spec, request.environment)
            running.tasks.start_soon(_forward_signals, running.job_service, spec.job_id, spec.signals_to_handle)
            running.tasks.start_soon(open_slow_edges, running, spec.job_id)
            job = await running.job_service.wait(spec.job_id)
    return running.job_service.report(job)


def peers_of_jobs(place: Place) -> Callable[[Post], contextlib.AbstractAsyncContextManager[PeersAndColleagues]]:
    """Opens peers with which jobs on several nodes meet the other nodes, each in its own way."""
    from supervisor.edges.peers.embedded.peers_of_jobs import (
        open_peers_of_jobs,  # Late: a job of one node never needs it.
    )

    return lambda post: open_peers_of_jobs(post, node_name=place.node_name)


@contextlib.contextmanager
def registered(folder: Path) -> Generator[None]:
    """Lets commands of this user find the private supervisor that serves in `folder`, within the block."""
    registration = private_registry.register(folder, os.getpid(), Clock().unix_ns())
    if registration.warning:
        _log.warning("%s", registration.warning)
    try:
        yield
    finally:
        registration.remove()


async def open_slow_edges(running: Running, job_id: str) -> None:
    await shared_jobs.until_workers_run(running.job_service, job_id)
    running.journal.start()
    running.retention.tidy_soon()
    running.tasks.start_soon(sweep)

    def load() -> Api:
        from supervisor.edges.operators.control_api import ControlApi

        return ControlApi(running.counter, running.journal)

    try:
        await running.tasks.start(ControlGate(socket_path=running.place.control_socket, load=load).run)
    except (HoldfastError, OSError) as error:
        _log.warning("commands can't ask this supervisor: %s", error)  # The job keeps running.


async def sweep() -> None:
    """Removes what killed supervisors left in shared folders, outside the event loop's thread."""
    await in_thread_if_any(private_dir.sweep)  # Otherwise the next supervisor does it.


async def _forward_signals(job_service: JobService, job_id: str, names: Sequence[str]) -> None:
    """Passes the launcher's signals on to the job until cancelled."""

    def on_signal(number: int) -> None:
        try:
            job_service.stop(job_id, reason=f"holdfast run got {signals.Signals(number).name}", signal=number)
        except HoldfastError:
            return  # It ended by itself in this moment.

    await signal_edge.receive(names, on_signal)
