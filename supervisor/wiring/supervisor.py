"""Which edges are opened, in which order, and how are they wired, for a node's daemon and for one private run?

This is the only place that knows all rooms. Every edge is one task in one tree; the last one opened is closed first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal as signals
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.config.resolve import RunRequest
from supervisor.config.stop_times import interrupted_grace_s
from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.folders import private_dir, private_registry, socket_dir, state_dir
from supervisor.edges.machine.folders.worker_tokens import WorkerTokens
from supervisor.edges.machine.gpus.node_gpus import NodeGpus
from supervisor.edges.machine.health.check_probes import NodeChecks
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.logs.log_retention import QUIET_S, LogRetention
from supervisor.edges.machine.logs.supervisor_log import SupervisorLog
from supervisor.edges.machine.own_process import ignored_signals, standard_streams
from supervisor.edges.machine.own_process import signals as signal_edge
from supervisor.edges.machine.own_process.open_files import RaisedLimit
from supervisor.edges.machine.own_process.threads import in_thread_if_any
from supervisor.edges.machine.processes.job_claims import JobClaims
from supervisor.edges.operators.control_gate import Api, ControlGate
from supervisor.edges.peers.embedded.local_peers import LocalPeers
from supervisor.edges.workers.auto_heartbeat_pages import MainThreads
from supervisor.edges.workers.channel.worker_server import WorkerServer
from supervisor.edges.workers.page_hand_over import PageOffers
from supervisor.edges.workers.spawner.spawner_lifecycle import SpawnerLifecycle
from supervisor.edges.workers.spawner.spawner_process import SpawnerProcess
from supervisor.engine.announcement_followers import Follow
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.engine_state import EngineState
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.output_plan import Console
from supervisor.engine.unsent_events import UnsentEvents
from supervisor.engine.waiting_jobs import WaitingJobs
from supervisor.errors import HoldfastError, one_refusal
from supervisor.ports.edges import Spawners
from supervisor.ports.questions import PeersAndNodeRequests
from supervisor.ports.reports import JobReport
from supervisor.queries.cluster_job_service import ClusterJobService
from supervisor.queries.job_service import JobService
from supervisor.queries.question_inbox import QuestionInbox
from supervisor.wiring import cycle_recording, shared_jobs
from supervisor.wiring.job_wiring import Base, Jobs, wired
from supervisor.wiring.log_server import LogFunnel
from supervisor.wiring.run_logs import RunLogs
from supervisor.wiring.shared_jobs import Recall
from supervisor.wiring.supervisor_paths import SupervisorPaths

if TYPE_CHECKING:
    from supervisor.wiring.supervisor_return import Returning

OpenPeers = Callable[[Base], contextlib.AbstractAsyncContextManager[PeersAndNodeRequests]]

SPAWNERS_END_TIMEOUT_S = 10.0  # the longest wait for ended spawners at the close

_log = logging.getLogger("holdfast")


class Running(msgspec.Struct, frozen=True):
    """A supervisor that takes jobs."""

    paths: SupervisorPaths
    job_service: JobService
    counter: ClusterJobService  # answers people's questions
    journal: Journal
    retention: LogRetention
    tasks: TaskGroup
    returning: Returning | None = None  # what a dead predecessor left; None: private, there was none


@contextlib.asynccontextmanager
async def open_supervisor(
    paths: SupervisorPaths,
    *,
    early: Sequence[SpawnerProcess] = (),
    claims: JobClaims | None = None,
    make_spawners: Callable[[WorkerServer, WorkerTokens], Spawners] | None = None,
    log_handlers: Sequence[logging.Handler] = (),
    open_peers: OpenPeers | None = None,
    keep_cordon: Callable[[str], Awaitable[None]] | None = None,
) -> AsyncGenerator[Running]:
    """Opens everything but the control API, ready to take jobs. Raises HoldfastError if it cannot be opened.

    `early`: spawners that already run, one per first job, whose ids `claims` hold. `make_spawners` replaces
    our own. `log_handlers` get everything that is logged, including events.
    `open_peers` opens the connection to the other nodes; None: there are none. `keep_cordon`: see ClusterJobService.
    At the end all edges are closed, innermost first. The caller has ended the jobs before.
    """
    log = SupervisorLog(paths.log_dir, names_jobs=not paths.private, others=log_handlers)
    log.open()
    if paths.warning:
        _log.warning("%s", paths.warning)
    retention = LogRetention(paths.log_dir, paths.log_limits, quiet_s=max(QUIET_S, paths.supervisor_return_timeout_s))
    limit, pages, main_threads = RaisedLimit(), PageOffers(), MainThreads()
    base = _base(paths, claims or JobClaims(), pages, main_threads)
    try:
        async with one_refusal(), anyio.create_task_group() as tasks:
            await tasks.start(base.workers.run)
            local_peers = contextlib.nullcontext(LocalPeers(base.inbox.post))
            peers_opened = local_peers if open_peers is None else open_peers(base)
            closing, draining = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
            async with (
                closing as closes, anyio.create_task_group() as log_tasks, draining as drains,
                peers_opened as peers, _spawner_tasks() as spawner_tasks,
            ):  # fmt: skip
                spawners = (
                    make_spawners(base.workers, base.tokens)
                    if make_spawners
                    else _spawner_lifecycle(base, limit, early, pages, main_threads)
                )
                jobs = _jobs(base, peers, spawners, retention, closes, drains, _Tasks(tasks, log_tasks, spawner_tasks))
                await tasks.start(jobs.engine.run)
                if jobs.outbox is not None:
                    tasks.start_soon(jobs.outbox.run)
                counter = await shared_jobs.open_counter(
                    tasks, base, jobs, peers.node_requests, keep_cordon=keep_cordon
                )
                yield Running(
                    paths, jobs.job_service, counter.job_service, base.journal, retention, tasks,
                    _returning(base, jobs, spawners, counter.recall),
                )  # fmt: skip
            tasks.cancel_scope.cancel()
    finally:
        base.claims.close()
        retention.close()
        base.journal.close()
        limit.restore()
        log.close()


def _base(paths: SupervisorPaths, claims: JobClaims, pages: PageOffers, main_threads: MainThreads) -> Base:
    clock, inbox, unsent, section_jobs = Clock(), EngineInbox(), UnsentEvents(), WaitingJobs()
    unkept = None if paths.private else WaitingJobs()
    journal = Journal(paths.state_dir, on_alarm=partial(_log.warning, "%s"), starts_thread=True)
    workers = WorkerServer(
        socket_path=paths.worker_socket, events=inbox, clock=clock, on_sections=section_jobs.add, pages=pages,
        main_threads=main_threads,
    )  # fmt: skip
    return Base(
        paths=paths,
        clock=clock,
        inbox=inbox,
        engine_state=EngineState(paths.node_name),
        journal=journal,
        publisher=EventPublisher(journal=journal, clock=clock, node_name=paths.node_name, unsent=unsent, unkept=unkept),
        unsent=unsent,
        unkept=unkept,
        questions=QuestionInbox(),
        workers=workers,
        section_jobs=section_jobs,
        tokens=WorkerTokens(socket_dir.tokens_dir(paths.socket_dir)),
        claims=claims,
        jobs={},
    )


class _Tasks(msgspec.Struct, frozen=True):
    """Task groups, those that end last first."""

    all: TaskGroup
    logs: TaskGroup
    spawners: TaskGroup


def _jobs(
    base: Base,
    peers: PeersAndNodeRequests,
    spawners: Spawners,
    retention: LogRetention,
    closes: contextlib.AsyncExitStack,
    drains: contextlib.AsyncExitStack,
    tasks: _Tasks,
) -> Jobs:
    """Makes what runs jobs. `drains` ends the log servers, `closes` everything else; at the end, in this order."""
    paths, jobs = base.paths, base.jobs
    gpus = NodeGpus(worker_socket=str(paths.worker_socket))
    checks = closes.enter_context(contextlib.closing(NodeChecks(gpus.probes())))
    closes.push_async_callback(gpus.aclose)
    closes.callback(base.tokens.remove_all)  # Once the directory is released, they are another supervisor's.
    words = cycle_recording.open_job_log(closes, paths, jobs)
    funnel = LogFunnel(
        tasks.logs, jobs, base.publisher.publish, paths=paths, node_requests=peers.node_requests, on_finish=words.finish
    )
    drains.callback(funnel.finish_all)  # data in transit has as long as the jobs' settings say
    run_logs = RunLogs(retention, jobs, tidies=not paths.private)

    def prepare(job_id: str) -> None:
        run_logs.submitted(job_id)
        funnel.submitted(job_id)

    records = cycle_recording.follow(closes, base.inbox, base.publisher, base.clock, tasks.all)
    ended: list[Follow] = [run_logs.announced]
    if isinstance(spawners, SpawnerLifecycle) and spawners.return_folder is not None:
        from supervisor.wiring.supervisor_return import EndedJobs  # Late: a private supervisor does not come back.

        ended.append(EndedJobs(base.journal, spawners, tasks.all).announced)
    return wired(
        base, peers=peers, spawners=spawners, checks=checks, gpus=gpus, tasks=tasks.spawners, prepare=prepare,
        followed_by=(*records, funnel.announced), ended=ended,
    )  # fmt: skip


def _returning(base: Base, jobs: Jobs, spawners: Spawners, recall: Recall | None) -> Returning | None:
    if not isinstance(spawners, SpawnerLifecycle) or spawners.return_folder is None:
        return None
    from supervisor.wiring.supervisor_return import Returning  # Late: a private supervisor does not come back.

    return Returning(
        spawners.return_folder, base.clock, base.inbox, jobs.engine, jobs.job_service, jobs.performer, base.publisher,
        base.journal, base.workers, base.tokens, base.claims, spawners, recall,
    )  # fmt: skip


def _spawner_lifecycle(
    base: Base, limit: RaisedLimit, early: Sequence[SpawnerProcess], pages: PageOffers, main_threads: MainThreads
) -> SpawnerLifecycle:
    paths = base.paths
    return SpawnerLifecycle(
        private=paths.private,
        output_dir=None if paths.private else paths.log_dir,
        exits_dir=paths.log_dir if paths.private else None,
        supervisor_return_timeout_s=paths.supervisor_return_timeout_s,
        open_files=limit.before_and_now,
        claims=base.claims,
        early=list(early),
        return_folder=None if paths.private else paths.socket_dir / socket_dir.SPAWNERS,
        pages=PageOffers() if paths.private else pages,  # nobody takes over a private supervisor's ranks
        main_threads=main_threads,
    )


@contextlib.asynccontextmanager
async def _spawner_tasks() -> AsyncGenerator[TaskGroup]:
    """Yields the task group of spawners, and waits a bounded time for those that were told to end."""
    async with anyio.create_task_group() as tasks:
        yield tasks
        tasks.cancel_scope.deadline = anyio.current_time() + SPAWNERS_END_TIMEOUT_S


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
    paths = SupervisorPaths(
        folder, state.path, console, private=True, log_limits=request.log_limits, warning=state.warning
    )
    spec, open_peers = request.spec, None
    if spec.nodes is not None:
        paths = msgspec.structs.replace(paths, node_name=spec.nodes.name)
        open_peers = peers_of_jobs
    async with open_supervisor(
        paths,
        early=(early,),
        claims=claims,
        log_handlers=log_handlers,
        open_peers=open_peers,
    ) as running:
        with registered(folder):
            await running.job_service.submit(spec, request.environment)
            has_ended = anyio.Event()
            running.tasks.start_soon(_forward_signals, running.job_service, spec.job_id, request, has_ended)
            running.tasks.start_soon(open_slow_edges, running, spec.job_id)
            job = await running.job_service.wait(spec.job_id)
            has_ended.set()
    return running.job_service.report(job)


def peers_of_jobs(base: Base) -> contextlib.AbstractAsyncContextManager[PeersAndNodeRequests]:
    """Opens peers with which jobs on several nodes meet the other nodes, each in its own way."""
    from supervisor.edges.peers.embedded.peers_of_jobs import (
        open_peers_of_jobs,  # Late: a job of one node never needs it.
    )

    return open_peers_of_jobs(base.inbox.post, base.questions.put, base.unsent, state_dir=base.paths.state_dir)


@contextlib.contextmanager
def registered(folder: Path, *, is_daemon: bool = False) -> Generator[None]:
    """Lets commands of this user find the supervisor that serves in `folder`, within the block."""
    registration = private_registry.register(folder, os.getpid(), Clock().unix_ns(), is_daemon=is_daemon)
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
        await running.tasks.start(ControlGate(socket_path=running.paths.control_socket, load=load).run)
    except (HoldfastError, OSError) as error:
        _log.warning("commands can't ask this supervisor: %s", error)  # The job keeps running.


async def sweep() -> None:
    """Removes what killed supervisors left in shared folders, outside the event loop's thread."""
    await in_thread_if_any(private_dir.sweep)  # Otherwise the next supervisor does it.


async def _forward_signals(job_service: JobService, job_id: str, request: RunRequest, has_ended: anyio.Event) -> None:
    """Passes the launcher's signals on to the job until cancelled. Once the job has ended, they are ignored.

    Else one that comes then would replace the job's exit code, and the last events would be lost.
    """

    def on_signal(number: int) -> None:
        try:
            grace_s = interrupted_grace_s(request, number) if standard_streams.stdin_is_terminal() else None
            reason = f"holdfast run got {signals.Signals(number).name}"
            job_service.stop(job_id, reason=reason, signal=number, grace_s=grace_s, of_node=True)
        except HoldfastError:
            return  # It ended by itself in this moment.

    names = ignored_signals.forwarded(request.spec.signals_to_handle)
    await signal_edge.receive(names, on_signal, is_ignored_then=has_ended.is_set)
