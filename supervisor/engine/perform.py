"""Carries out what the core decided: each action becomes a call of one port."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path

import anyio
import msgspec
from holdfast_wire import spawner_link as link

from supervisor.core.cluster import messages as cluster_messages
from supervisor.core.facts import Evidence
from supervisor.core.node import messages as node_messages
from supervisor.core.node import node
from supervisor.engine.chronicle import Chronicle
from supervisor.engine.job_book import JobRecord
from supervisor.engine.loop import Engine, EngineEvent
from supervisor.engine.spawner_reports import SpawnerReports
from supervisor.engine.worker_plan import WorkerPlanner
from supervisor.ports import Clock, JobFiles, Spawner, Spawners, StackSource, Tokens, Workers

StartSoon = Callable[
    [Callable[[], Coroutine[object, object, None]]], None
]  # runs a coroutine function in the daemon's task group
LAST_OUTPUT_TIMEOUT_S = 5.0  # a spawner that was told to end and does not keeps its job from ending this long
ITERATION_REPORTS = (cluster_messages.JobOpened, cluster_messages.NodeFailed)


class Edges(msgspec.Struct, frozen=True):
    """Everything outside the core that the performer may call."""

    clock: Clock
    workers: Workers
    spawners: Spawners
    stacks: StackSource
    tokens: Tokens
    files: JobFiles
    planner: WorkerPlanner


class EnginePerformer:
    """See loop.Performer."""

    def __init__(
        self,
        *,
        edges: Edges,
        jobs: dict[str, JobRecord],
        chronicle: Chronicle,
        engine: Engine,
        start_soon: StartSoon,
    ) -> None:
        self._edges = edges
        self._jobs = jobs
        self._chronicle = chronicle
        self._engine = engine
        self._start_soon = start_soon
        self.on_finished: Callable[[str], None] = _nobody  # told the id of a job of which nothing is left

    def perform(self, action: node_messages.Action) -> tuple[EngineEvent, ...]:
        job = self._jobs.get(action.job_id)
        if job is None:
            return ()
        match action:
            case node_messages.StartSpawner():
                self._start_soon(lambda: self._keep_spawner(job))
            case node_messages.PrepareStore():
                return self._want_store(job, action.cycle)
            case node_messages.SpawnWorkers():
                self._spawn(job, action)
            case node_messages.RespawnWorkers(local_ranks=local_ranks):
                self._respawn(job, local_ranks)
            case node_messages.TellRanks():
                self._edges.workers.tell_ranks(action.job_id, action.cycle, action.local_ranks, action.order)
            case node_messages.SignalWorkers() | node_messages.KillTree() | node_messages.EndSpawner():
                self._end(job, action)
            case node_messages.ReadProgress():
                progress = self._edges.workers.read_progress(action.job_id, action.cycle, action.local_rank)
                if progress is not None:
                    return (node_messages.ProgressRead(action.job_id, action.cycle, action.local_rank, progress),)
            case node_messages.CollectEvidence():
                self._start_soon(lambda: self._collect(job, action))
            case node_messages.Publish():
                self._chronicle.publish(job, action.event)
            case node_messages.TellCoordinator():
                return self._tell(job, action.report)
            case node_messages.FinishJob():
                job.verdict = action.verdict
                self._edges.workers.close_cycle(job.spec.job_id, job.cycle)
                self._edges.tokens.withdraw(job.spec.job_id, job.cycle)
                self._start_soon(lambda: self._finish(job))
        return ()

    def _end(
        self, job: JobRecord, action: node_messages.SignalWorkers | node_messages.KillTree | node_messages.EndSpawner
    ) -> None:
        match action:
            case node_messages.SignalWorkers(_, cycle, signal, local_ranks, tree, resume, sessions):
                self._send(job, link.Signal(cycle, signal, local_ranks, tree, resume, sessions))
            case node_messages.KillTree(cycle=cycle):
                self._send(job, link.KillTree(cycle))
            case node_messages.EndSpawner():
                job.spawner_ending = True
                self._send(job, link.End())

    def publish(self, job_id: str, action: cluster_messages.Publish) -> None:
        job = self._jobs.get(job_id)
        if job is not None:
            self._chronicle.publish(job, action.event)

    def leads(self, job_id: str) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and job.verdict is None

    def settled(self) -> None:
        self._chronicle.settle()

    def restart_announced(self, job_id: str, next_cycle: int) -> None:
        """The next cycle is prepared while the workers of this one end: that saves its time at each restart.

        Not where the port is fixed: the old store still holds it.
        """
        job = self._jobs.get(job_id)
        if job is not None and not job.spec.master_port:
            is_bound = job.spec.gpus_per_numa is not None  # such workers are executed, not forked
            self._ask_for_store(job, next_cycle, workers_ahead=0 if is_bound else job.spec.local_world_size)

    def _want_store(self, job: JobRecord, cycle: int) -> tuple[EngineEvent, ...]:
        job.store_wanted = cycle
        answer = job.store_answer
        if answer is not None and answer.cycle == cycle:
            if isinstance(answer, node_messages.StoreReady):
                return (answer,)
            job.store_asked = cycle - 1  # What was short while the old workers lived may be there now: asked again.
        self._ask_for_store(job, cycle)
        return ()

    def _ask_for_store(self, job: JobRecord, cycle: int, *, workers_ahead: int = 0) -> None:
        if job.spawner is None or job.store_asked >= cycle:
            return
        job.store_asked = cycle
        job.store_answer = None
        spec = job.spec
        self._send(
            job,
            link.PrepareStore(
                cycle=cycle,
                host=spec.master_addr,
                port=spec.master_port,
                serve=spec.agent_store,
            ),
        )
        if workers_ahead:
            self._send(job, link.ForkAhead(cycle, workers_ahead))

    def _send(self, job: JobRecord, message: link.ToSpawner) -> None:
        """A lost spawner has been or will be reported; what it can't hear any more needs no answer."""
        if job.spawner is not None:
            job.spawner.send(message)

    def _tell(self, job: JobRecord, report: cluster_messages.Event) -> tuple[EngineEvent, ...]:
        """Reports reach the coordinator in order; those that follow one that reads the checkpoint file wait for it."""
        reads = bool(job.spec.checkpoint_iteration_file) and isinstance(report, ITERATION_REPORTS)
        if not reads and not job.unsent_reports:
            return ((job.spec.job_id, report),)
        job.unsent_reports.append(report)
        if len(job.unsent_reports) == 1:
            self._start_soon(lambda: self._tell_in_order(job))
        return ()

    async def _tell_in_order(self, job: JobRecord) -> None:
        """The checkpoint file may lie on a slow disk: it is read beside the loop, in a bounded time."""
        while job.unsent_reports:
            report = job.unsent_reports[0]
            if isinstance(report, ITERATION_REPORTS):
                iteration = await self._edges.files.read_iteration(job.spec.checkpoint_iteration_file)
                report = msgspec.structs.replace(report, iteration=iteration)
            job.unsent_reports.popleft()
            self._engine.post((job.spec.job_id, report))

    def _spawn(self, job: JobRecord, action: node_messages.SpawnWorkers) -> None:
        job_id, assignment = action.job_id, action.assignment
        clock = self._edges.clock
        if job.pids_cycle >= 0:
            self._edges.workers.close_cycle(job_id, job.pids_cycle)
            self._edges.tokens.withdraw(job_id, job.pids_cycle)
        job.begin_cycle(assignment, at_ns=clock.unix_ns(), at_s=clock.now_s())
        token, token_path = self._edges.tokens.issue(job_id, assignment.cycle)
        view = node.view(self._engine.node_state, job_id)
        self._edges.workers.open_cycle(
            job_id,
            assignment.cycle,
            token=token,
            spec=job.spec,
            limits=view.limits if view is not None else job.spec.hang_limits,
            first_rank=assignment.first_rank,
        )
        job.token_path, job.store = str(token_path), (action.store_host, action.store_port)
        plans = self._edges.planner.plan(
            job, assignment, token_path=token_path, store_host=action.store_host, store_port=action.store_port
        )
        self._send(job, link.Spawn(assignment.cycle, plans))

    def _respawn(self, job: JobRecord, local_ranks: tuple[int, ...]) -> None:
        """As those that they stand in for were started: the same cycle, token and store."""
        if job.assignment is None:
            return
        job.respawns += 1
        host, port = job.store
        plans = self._edges.planner.plan(
            job,
            job.assignment,
            token_path=Path(job.token_path),
            store_host=host,
            store_port=port,
            local_ranks=local_ranks,
            respawn=job.respawns,
        )
        self._send(job, link.Spawn(job.assignment.cycle, plans))

    async def _keep_spawner(self, job: JobRecord) -> None:
        reports = SpawnerReports(job, files=self._edges.files, workers=self._edges.workers, chronicle=self._chronicle)
        job.spawner_ending = False
        job.spawner_gone = anyio.Event()

        def on_started(spawner: Spawner) -> None:
            job.spawner = spawner

        def on_message(message: link.FromSpawner) -> None:
            for event in reports.read(message):
                self._engine.post(event)

        reason = await self._edges.spawners.keep(
            job.spec, job.environment, on_started=on_started, on_message=on_message
        )
        job.spawner = None
        job.spawner_gone.set()
        job.store_asked = -1
        if not job.spawner_ending:
            self._engine.post(node_messages.SpawnerLost(job.spec.job_id, reason))

    async def _finish(self, job: JobRecord) -> None:
        """The spawner writes the ranks' last output as it ends: who reads the logs until the end must get that, too."""
        with anyio.move_on_after(LAST_OUTPUT_TIMEOUT_S):
            while job.spawner is not None:
                await job.spawner_gone.wait()
        self.on_finished(job.spec.job_id)

    async def _collect(self, job: JobRecord, action: node_messages.CollectEvidence) -> None:
        evidence = await self.collect_stacks(job, cycle=action.cycle, budget_s=action.budget_s)
        self._engine.post(node_messages.EvidenceCollected(action.job_id, action.cycle, evidence))

    async def collect_stacks(self, job: JobRecord, *, cycle: int, budget_s: float, rank: int | None = None) -> Evidence:
        """Stacks of the ranks that run now, within the budget."""
        first_rank = job.first_rank
        pids = {
            first_rank + local_rank: pid
            for local_rank, pid in sorted(job.pids.items())
            if job.pids_cycle == cycle and rank in (None, first_rank + local_rank)
        }

        async def ask(of_rank: int, timeout_s: float) -> str | None:
            return await self._edges.workers.ask_stacks(
                job.spec.job_id, cycle, of_rank - first_rank, timeout_s=timeout_s
            )

        return await self._edges.stacks.collect(pids, ask=ask, budget_s=budget_s)


def _nobody(job_id: str) -> None:
    """Nobody waits for this job's end."""
