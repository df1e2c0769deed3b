"""How is what the core decided performed? Each action becomes a call of one port.

This is the bulkhead between jobs. Any failure while an action of one job is performed, at once or in a separate task,
becomes events of that job (core/node/failed_actions.py) and affects nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from holdfast_wire import spawner_link as link

from supervisor.core.announcements import Announcement, JobEnded
from supervisor.core.cluster import cluster_messages
from supervisor.core.cluster.cluster_messages import Event as Report
from supervisor.core.facts import JobEvent
from supervisor.core.gpu_affinity import places_sentence
from supervisor.core.gpu_memory import MemoryReport
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node import failed_actions, node, node_messages, spawner_deadlines
from supervisor.engine import announcement_followers
from supervisor.engine.announcement_followers import Follow
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.engine_state import EngineState
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.failure_text import failure_sentence, failure_text
from supervisor.engine.job_record import CycleRecord, JobRecord
from supervisor.engine.node_probing import NodeProbing
from supervisor.engine.node_stacks import NodeStacks
from supervisor.engine.report_queue import ReportQueue
from supervisor.engine.report_saving import ReportSaving
from supervisor.engine.spawner_orders import SpawnerAction, order_of
from supervisor.engine.spawner_reports import SpawnerReports
from supervisor.engine.worker_plan import WorkerPlanner
from supervisor.errors import NotNowError
from supervisor.ports.edges import (
    Clock,
    Gpus,
    JobFiles,
    NodeChecks,
    Peers,
    Spawner,
    Spawners,
    Tokens,
    Workers,
)

if TYPE_CHECKING:
    from supervisor.engine.recovery.turn_outbox import TurnOutbox

# Runs a coroutine function in the daemon's task group.
StartSoon = Callable[[Callable[[], Coroutine[object, object, None]]], None]

_log = logging.getLogger("holdfast")


class Edges(msgspec.Struct, frozen=True):
    """Everything outside the core that the performer may call."""

    clock: Clock
    workers: Workers
    spawners: Spawners
    tokens: Tokens
    files: JobFiles
    checks: NodeChecks
    gpus: Gpus
    peers: Peers
    planner: WorkerPlanner


class EnginePerformer:
    """Performs actions; see loop.Performer."""

    def __init__(
        self,
        *,
        edges: Edges,
        jobs: dict[str, JobRecord],
        publisher: EventPublisher,
        inbox: EngineInbox,
        engine_state: EngineState,
        stacks: NodeStacks,
        start_soon: StartSoon,
        followed_by: Sequence[Follow] = (),
        reports: dict[str, ReportQueue],
        saving: ReportSaving,
        outbox: TurnOutbox | None = None,
    ) -> None:
        """`reports`: of each job to its coordinator, not sent yet. `outbox` None: no supervisor returns."""
        self._edges = edges
        self._jobs = jobs
        self._publisher = publisher
        self._inbox = inbox
        self._engine_state = engine_state
        self._stacks = stacks
        self._start_soon = start_soon
        self._followers = followed_by
        self._looking = NodeProbing(checks=edges.checks, gpus=edges.gpus, post=inbox.post)
        self._reports = reports
        self._saving = saving
        self._outbox = outbox

    # --- see loop.Performer ----------------------------------------------------------------------------------------

    def perform(self, action: node_messages.Action) -> tuple[node_messages.Event, ...]:
        job = self._jobs.get(action.job_id)
        if job is None:
            return ()
        try:
            return self._carry_out(job, action)
        except Exception as error:  # noqa: BLE001 - the bulkhead: any failure is that of this job alone
            return self._failed(job, action, error)

    def send(self, job_id: str, action: cluster_messages.Send) -> None:
        self._edges.peers.send(action.node, job_id, action.order)

    def publish(self, job_id: str, action: cluster_messages.Publish) -> None:
        job = self._jobs.get(job_id)
        if job is not None:
            self._publisher.publish(job, action.event)

    def record(self, job_id: str, ledger: Ledger) -> None:
        self._edges.peers.record(job_id, ledger)

    def announce(self, job_id: str, announcement: Announcement) -> None:
        job = self._jobs.get(job_id)
        if job is not None:
            announcement_followers.announce(self._followers, job, announcement)

    def show(self, job_id: str, *, restarts_used: int, iteration: int) -> None:
        job = self._jobs.get(job_id)
        if job is not None:
            job.show(restarts_used=restarts_used, iteration=iteration)

    def leads(self, job_id: str) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and job.verdict is None and self._edges.peers.leads(job_id)

    def name_in(self, job_id: str) -> str:
        job, own = self._jobs.get(job_id), self._engine_state.node_name
        return own if job is None else job.node_name(own)

    def settled(self) -> None:
        if self._outbox is not None:
            self._outbox.settle()
        self._saving.settle()

    def take_back(self, job: JobRecord, unfinished: Iterable[node_messages.Action], reports: Iterable[Report]) -> None:
        """Continues a job of another supervisor: its spawner, and its unfinished actions and reports."""
        self.perform(node_messages.StartSpawner(job.spec.job_id, job.spawner_number))
        for action in unfinished:
            self.perform(action)
        for report in reports:
            self.perform(node_messages.TellCoordinator(job.spec.job_id, report))
        watch = self._engine_state.node_state.jobs[job.spec.job_id].spawner
        if isinstance(watch, spawner_deadlines.Killing):
            job.spawner_doom = watch.reason

    # --- the bulkhead ----------------------------------------------------------------------------------------------

    def _failed(
        self, job: JobRecord, action: node_messages.Action, error: Exception
    ) -> tuple[node_messages.Event, ...]:
        reason = failure_text(action, error)
        events = failed_actions.events_of(action, reason, local_world_size=job.spec.local_world_size)
        if not events:
            _log.warning("job %s: %s", action.job_id, reason)
        return events

    def _attempt(self, job: JobRecord, action: node_messages.Action, work: Callable[[], Awaitable[None]]) -> None:
        """Performs the work in a separate task, behind the same bulkhead."""

        number = self._outbox.begin(action) if self._outbox is not None else 0

        async def attempt() -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - as in `perform`
                for event in self._failed(job, action, error):
                    self._inbox.post(event)
            finally:
                if self._outbox is not None:
                    self._outbox.end(action.job_id, number)

        self._start_soon(attempt)

    # --- actions ---------------------------------------------------------------------------------------------------

    def _carry_out(self, job: JobRecord, action: node_messages.Action) -> tuple[node_messages.Event, ...]:
        match action:
            case node_messages.StartSpawner(number=number):
                job.begin_spawner(number)
                self._attempt(job, action, lambda: self._keep_spawner(job, number))
            case (
                node_messages.PrepareStore() | node_messages.ForkAhead() | node_messages.SignalWorkers()
                | node_messages.KillTree() | node_messages.MoveFence() | node_messages.EndSpawner()
                | node_messages.KillSpawner()
            ):  # fmt: skip
                self._tell_spawner(job, action)
            case node_messages.SpawnWorkers():
                self._spawn(job, action)
            case node_messages.RespawnWorkers(local_ranks=local_ranks):
                self._respawn(job, local_ranks)
            case node_messages.TellRanks():
                self._tell_ranks(action)
            case node_messages.ReconnectRanks():
                self._edges.workers.reconnect(action.job_id, action.cycle)
            case node_messages.ReadProgress():
                progress = self._edges.workers.read_progress(action.job_id, action.cycle, action.local_rank)
                if progress is not None:
                    return (node_messages.ProgressRead(action.job_id, action.cycle, action.local_rank, progress),)
            case node_messages.CollectEvidence() | node_messages.LookAtRanks():
                self._attempt(job, action, lambda: self._look_at_ranks(job, action))
            case node_messages.CheckNode() | node_messages.AwaitGpuMemory():
                return self._look_at_node(job, action)
            case node_messages.Publish():
                self._publisher.publish(job, action.event)
            case node_messages.TellCoordinator():
                queue = self._reports_of(job)
                if queue.put(action.report):
                    self._attempt(job, action, queue.drain)
            case node_messages.FinishJob():
                self._finish(job, action)
        return ()

    def _tell_spawner(
        self,
        job: JobRecord,
        action: SpawnerAction | node_messages.KillSpawner,
    ) -> None:
        """Sends to the spawner. A lost spawner is reported elsewhere: what it can't get any more needs no answer."""
        spawner = job.spawner
        if spawner is None:
            if isinstance(action, node_messages.KillSpawner):
                job.spawner_doom = action.reason  # it may still be starting
        elif isinstance(action, node_messages.KillSpawner):
            spawner.kill(f"{action.reason}; {_process_state(spawner)}")
        else:
            self._order(job, spawner, order_of(action, job.spec, now_s=self._edges.clock.now_s()))
        if isinstance(action, node_messages.MoveFence):
            job.fence_until_s = action.until_s
            self._edges.workers.extend_lease(action.job_id, action.until_s)

    def _tell_fence(self, job: JobRecord) -> None:
        """Tells a new spawner how long its workers may run: it may be needed before the fence is moved again."""
        if job.fence_until_s is not None:
            self._tell_spawner(job, node_messages.MoveFence(job.spec.job_id, job.fence_until_s))

    def _tell_ranks(self, action: node_messages.TellRanks) -> None:
        tell = partial(self._edges.workers.tell_ranks, action.job_id, action.cycle, action.local_ranks, action.order)
        if self._outbox is None:
            tell()
        elif isinstance(action.order, node_messages.Accepted):
            self._outbox.answer(action.job_id, tell)
        else:
            self._outbox.say(tell)

    def _order(self, job: JobRecord, spawner: Spawner, message: link.Order) -> None:
        if self._outbox is not None and self._outbox.keeps(job):
            self._outbox.order(job.spec.job_id, message)
        else:
            spawner.send(message)

    def _reports_of(self, job: JobRecord) -> ReportQueue:
        job_id, path = job.spec.job_id, job.spec.checkpoint_iteration_file
        queue = self._reports.get(job_id)

        def leave(report: cluster_messages.Event) -> None:
            if self._jobs.get(job_id) is job:  # otherwise a new run has the id, and its coordinator would be misled
                self._edges.peers.report(job_id, report)

        if queue is None:
            queue = self._reports[job_id] = ReportQueue(
                read_iteration=(lambda: self._edges.files.read_iteration(path)) if path else None,
                leave=leave,
                clock=self._edges.clock,
            )
        return queue

    def _spawn(self, job: JobRecord, action: node_messages.SpawnWorkers) -> None:
        job_id, assignment = action.job_id, action.assignment
        self._close_cycle(job)
        token, token_path = self._edges.tokens.issue(job_id, assignment.cycle)
        at_ns = self._edges.clock.unix_ns()
        store = action.store_host, action.store_port
        job.begin_cycle(CycleRecord(assignment, at_ns, str(token_path), *store, token=token))
        view = node.view(self._engine_state.node_state, job_id)
        self._edges.workers.open_cycle(
            job_id,
            assignment.cycle,
            token=token,
            spec=job.spec,
            limits=view.limits if view is not None else job.spec.hang_limits,
            first_rank=assignment.first_rank,
            is_fenced=node.is_fenced(self._engine_state.node_state, job_id),
        )
        self._send_plans(job, None)
        if job.spec.memory_rules() is not None and self._edges.gpus.are_there():
            self._start_soon(lambda: self._looking.warm(job_id))

    def _respawn(self, job: JobRecord, local_ranks: tuple[int, ...]) -> None:
        """Starts replacements as the lost ranks were started: with the same cycle, token and store."""
        if job.running is not None:
            job.running = msgspec.structs.replace(job.running, respawns=job.running.respawns + 1)
            self._send_plans(job, local_ranks)

    def _send_plans(self, job: JobRecord, local_ranks: tuple[int, ...] | None) -> None:
        """Sends plans. `local_ranks` None: all."""
        running = job.running
        if running is None or job.spawner is None:
            raise NotNowError("cannot start workers: the spawner is lost")
        plans = self._edges.planner.plan(
            job,
            running.assignment,
            token_path=Path(running.token_path),
            store_host=running.store_host,
            store_port=running.store_port,
            local_ranks=local_ranks,
            respawn=running.respawns,
        )
        self._order(job, job.spawner, link.Spawn(running.assignment.cycle, plans))

    def _close_cycle(self, job: JobRecord) -> None:
        """Closes the cycle: nobody speaks for its ranks any more."""
        if job.running is not None:
            try:
                self._edges.workers.close_cycle(job.spec.job_id, job.cycle)
            finally:
                self._edges.tokens.withdraw(job.spec.job_id, job.cycle)

    async def _keep_spawner(self, job: JobRecord, number: int) -> None:
        reports = SpawnerReports(
            job, number, workers=self._edges.workers, publisher=self._publisher, clock=self._edges.clock
        )
        job_id = job.spec.job_id

        def is_newest() -> bool:
            """Returns whether it is the newest: an abandoned spawner, which could not be killed, may return."""
            return self._jobs.get(job_id) is job and job.spawner_number == number

        def on_started(spawner: Spawner) -> None:
            if is_newest():
                job.spawner, job.is_returning = spawner, False
                self._tell_fence(job)
                if self._outbox is not None:
                    self._outbox.keep(job)
            if job.spawner_doom or not is_newest():
                spawner.kill(job.spawner_doom or "another spawner has taken its place")

        def on_message(message: link.FromSpawner) -> None:
            if not is_newest():
                return
            try:
                events = tuple(reports.read(message))
            except Exception as error:  # noqa: BLE001 - the bulkhead: the job must not wait for what was not understood
                reason = failure_sentence(f"take in {type(message).__name__} from the spawner", job_id, error)
                events = (node_messages.SpawnerBroken(job_id, reason),)
            for event in events:
                self._inbox.post(event)

        def on_end_seen(cycle: int, local_rank: int) -> None:
            if is_newest():
                self._inbox.post(node_messages.WorkerEndSeen(job_id, cycle, local_rank))

        if job.is_returning:  # Its spawner would get nothing meanwhile, neither the fence nor a stop.
            self._start_soon(lambda: self._find_places_late(job))
        else:
            await self._find_places(job)
        try:
            reason = await self._edges.spawners.keep(
                job.spec, job.environment, on_started=on_started, on_message=on_message, on_end_seen=on_end_seen
            )
        finally:
            if job.spawner_number == number:
                job.spawner, job.is_returning = None, False
        if is_newest():
            self._inbox.post(node_messages.SpawnerLost(job_id, number, reason))

    async def _find_places(self, job: JobRecord, when: str = "") -> None:
        """Finds the GPUs to which the job's workers are bound. Without an answer they run unbound."""
        if job.spec.numa_binding == "none" or job.gpu_places:
            return
        places, why_not = await self._edges.gpus.places(job.spec)
        if self._jobs.get(job.spec.job_id) is not job or job.verdict is not None:
            return  # The id may have another run.
        job.gpu_places = places
        sentence = why_not or places_sentence(job.gpu_places, job.spec.local_world_size, job.spec.numa_binding)
        kind = "workers_not_bound" if why_not else "workers_bound"
        self._publisher.publish(job, JobEvent(kind, when + sentence, cycle=job.cycle))

    async def _find_places_late(self, job: JobRecord) -> None:
        """Finds them while the job goes on, behind the same bulkhead: a failure costs only the binding."""
        try:
            await self._find_places(job, "when they are started again: ")
        except Exception as error:  # noqa: BLE001 - as in `perform`
            _log.warning("the workers of job %s run unbound: %s", job.spec.job_id, error)

    def _finish(self, job: JobRecord, action: node_messages.FinishJob) -> None:
        job.verdict = action.verdict
        self._looking.give_up(job.spec.job_id)
        if self._outbox is not None:
            self._outbox.forget(job.spec.job_id)
        self._reports.pop(job.spec.job_id, None)
        try:
            self._close_cycle(job)
        finally:
            job.end(self._edges.clock.unix_ns())
            announcement_followers.announce(self._followers, job, JobEnded(action.verdict))

    def _look_at_node(
        self, job: JobRecord, action: node_messages.CheckNode | node_messages.AwaitGpuMemory
    ) -> tuple[node_messages.Event, ...]:
        if isinstance(action, node_messages.CheckNode):
            self._attempt(job, action, lambda: self._looking.check(job, action))
        elif self._edges.gpus.are_there():
            self._attempt(job, action, lambda: self._looking.await_memory(job, action))
        else:
            return (node_messages.GpuMemorySeen(action.job_id, action.cycle, MemoryReport(is_free=True)),)
        return ()

    async def _look_at_ranks(
        self, job: JobRecord, action: node_messages.CollectEvidence | node_messages.LookAtRanks
    ) -> None:
        if isinstance(action, node_messages.CollectEvidence):
            evidence = await self._stacks.evidence(job, action)
            self._inbox.post(node_messages.EvidenceCollected(action.job_id, action.cycle, evidence))
        else:
            looks = await self._stacks.threads(job, cycle=action.cycle, budget_s=action.budget_s)
            self._inbox.post(node_messages.RanksLookedAt(action.job_id, action.cycle, looks))


def _process_state(spawner: Spawner) -> str:
    """Returns what the spawner does. A failure to find out must not prevent its kill."""
    try:
        return spawner.process_state()
    except Exception as error:  # noqa: BLE001 - reported instead of the state
        return f"what it does can't be said ({error})"
