"""The real engine between fakes: an obedient spawner, a clock that tests set, a journal that remembers."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import anyio
from anyio.abc import TaskGroup
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.core.facts import Evidence, HangLimits, Progress, StackGroup
from supervisor.core.gpu_affinity import GpuPlace
from supervisor.core.gpu_memory import GpuMemory, MemoryReport, MemoryRules
from supervisor.core.node import node_messages
from supervisor.core.node_check_facts import HealthFinding
from supervisor.core.process_facts import Frame, ProcessFacts, ProcessState, RankFacts, RankLook
from supervisor.core.wrapped_calls.call_messages import ToRank
from supervisor.edges.peers.embedded.local_peers import LocalPeers
from supervisor.engine.action_performer import Edges, EnginePerformer
from supervisor.engine.announcement_followers import Follow
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.engine_loop import Engine
from supervisor.engine.engine_state import EngineState
from supervisor.engine.event_publisher import EventPublisher
from supervisor.engine.job_record import JobRecord
from supervisor.engine.known_stragglers import KnownStragglers
from supervisor.engine.node_stacks import NodeStacks
from supervisor.engine.output_plan import Console
from supervisor.engine.recovery.turn_outbox import TurnOutbox
from supervisor.engine.report_queue import ReportQueue
from supervisor.engine.report_saving import ReportSaving
from supervisor.engine.unsent_events import UnsentEvents
from supervisor.engine.waiting_jobs import WaitingJobs
from supervisor.engine.worker_plan import WorkerPlanner
from supervisor.ports.edges import Meetings, Spawner, Spawners, StackSource, nobody_asks
from supervisor.ports.reports import JobReport, RecordedEvent
from supervisor.queries.cluster_view import ClusterView
from supervisor.queries.job_service import JobService
from tests.settling import settled

PID_OF_RANK_0 = 1000
DEADLINES_MAX = 1000


class SetClock:
    def __init__(self) -> None:
        self.at_s = 100.0

    def now_s(self) -> float:
        return self.at_s

    def boot_ns(self) -> int:
        return int(self.at_s * 1e9)

    def unix_ns(self) -> int:
        return int(self.at_s * 1e9)


@dataclass
class FakeJournal:
    events: list[RecordedEvent] = field(default_factory=list[RecordedEvent])
    reports: list[JobReport] = field(default_factory=list[JobReport])

    def record(self, event: RecordedEvent) -> None:
        self.events.append(event)

    def save(self, report: JobReport) -> None:
        self.reports.append(report)

    def uncommitted(self, job_id: str) -> list[RecordedEvent]:
        return [event for event in self.events if event.job_id == job_id]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


class FakeClaims:
    """Claims for tests: every id is free until it is taken."""

    def __init__(self, clock: SetClock) -> None:
        self._clock = clock
        self.held: set[str] = set()

    def take(self, job_id: str, *, node: str = "", meets_at: str = "") -> int:
        self.held.add(job_id)
        return self._clock.unix_ns()

    def release(self, job_id: str) -> None:
        self.held.discard(job_id)


class FakeTokens:
    def __init__(self) -> None:
        self.live: set[tuple[str, int]] = set()

    def issue(self, job_id: str, cycle: int) -> tuple[bytes, Path]:
        self.live.add((job_id, cycle))
        return b"t" * 32, Path(f"/tokens/{job_id}-{cycle}")

    def withdraw(self, job_id: str, cycle: int) -> None:
        self.live.discard((job_id, cycle))


class FakeFiles:
    def __init__(self) -> None:
        self.iteration: int | None = None

    async def read_iteration(self, path: str) -> int | None:
        return self.iteration


class FakeChecks:
    def __init__(self) -> None:
        self.findings: tuple[HealthFinding, ...] = ()

    async def run(
        self, spec: JobSpec, check: str, report: Callable[[tuple[HealthFinding, ...]], None]
    ) -> tuple[HealthFinding, ...]:
        del spec, check, report
        return self.findings


class FakeGpus:
    """GPUs for tests: none, unless a test says so; then memory is free when the test says that."""

    def __init__(self) -> None:
        self.present = False
        self.asked: list[MemoryRules] = []
        self.free = anyio.Event()
        self.warmed = 0
        self.found: tuple[tuple[GpuPlace, ...], str] = ((), "this is a test")

    def are_there(self) -> bool:
        return self.present

    async def warm(self) -> None:
        self.warmed += 1

    async def await_memory(self, spec: JobSpec, rules: MemoryRules, *, cgroups: Sequence[str]) -> MemoryReport:
        del spec, cgroups
        self.asked.append(rules)
        await self.free.wait()
        return MemoryReport(is_free=True, gpus=(GpuMemory("GPU 0", 1, 0, 1),))

    async def places(self, spec: JobSpec) -> tuple[tuple[GpuPlace, ...], str]:
        del spec
        return self.found


class FakeWorkers:
    def __init__(self) -> None:
        self.open: dict[tuple[str, int], HangLimits] = {}
        self.fenced: dict[tuple[str, int], bool] = {}
        self.leases: dict[str, float] = {}
        self.expected: list[tuple[int, int, int]] = []
        self.progress: dict[int, Progress] = {}
        self.told: list[tuple[tuple[int, ...], ToRank | node_messages.Accepted]] = []
        self.read: Callable[[str, int, int], Progress | None] = lambda _, __, local_rank: self.progress.get(local_rank)

    def open_cycle(
        self, job_id: str, cycle: int, *,
        token: bytes, spec: JobSpec, limits: HangLimits, first_rank: int, is_fenced: bool,
    ) -> None:  # fmt: skip
        self.open[job_id, cycle] = limits
        self.fenced[job_id, cycle] = is_fenced

    def extend_lease(self, job_id: str, until_s: float) -> None:
        self.leases[job_id] = until_s

    def expect(self, job_id: str, cycle: int, local_rank: int, pid: int) -> None:
        self.expected.append((cycle, local_rank, pid))

    def close_cycle(self, job_id: str, cycle: int) -> None:
        self.open.pop((job_id, cycle), None)

    def set_limits(self, job_id: str, cycle: int, limits: HangLimits) -> None:
        self.open[job_id, cycle] = limits

    def read_progress(self, job_id: str, cycle: int, local_rank: int) -> Progress | None:
        return self.read(job_id, cycle, local_rank)

    def recall(self, job_id: str, cycle: int, local_rank: int, progress: Progress) -> None:
        self.progress[local_rank] = progress

    def tell_ranks(
        self, job_id: str, cycle: int, local_ranks: Sequence[int], order: ToRank | node_messages.Accepted
    ) -> None:
        self.told.append((tuple(local_ranks), order))

    def reconnect(self, job_id: str, cycle: int) -> None:
        pass

    async def ask_stacks(self, job_id: str, cycle: int, local_rank: int, *, timeout_s: float) -> str | None:
        return None


class FakeStacks:
    def __init__(self) -> None:
        self.asked: list[dict[int, int]] = []
        self.kernel_waits_s: list[float] = []
        self.stopped: set[int] = set()
        self.processes: dict[int, ProcessFacts] = {}  # by pid

    async def collect(
        self,
        pids: Mapping[int, int],
        *,
        ask: Callable[[int, float], Awaitable[str | None]],
        budget_s: float,
        accused: tuple[int, ...] = (),
        apart_s: float = 0.0,
        kernel_wait_s: float = 0.0,
    ) -> Evidence:
        self.asked.append(dict(pids))
        self.kernel_waits_s.append(kernel_wait_s)
        stopped = dict.fromkeys(self.stopped, ProcessFacts(ProcessState.STOPPED, stop_signal="SIGSTOP"))
        known = stopped | self.processes
        facts = tuple(RankFacts(rank, process=known[pid]) for rank, pid in pids.items() if pid in known)
        return Evidence(groups=(StackGroup(tuple(pids), "main (t.py:1)"),), source="fake", facts=facts)

    async def look(self, pids: Mapping[int, int], *, budget_s: float) -> tuple[RankLook, ...]:
        return tuple(RankLook(rank, (Frame("/t.py", "main", pid),)) for rank, pid in pids.items())

    def is_stopped(self, pid: int) -> bool:
        return pid in self.stopped


class ObedientSpawner:
    """Obeys orders at once, unless `silent` names the message's type."""

    pid = 77

    def __init__(self, on_message: Callable[[link.FromSpawner], None]) -> None:
        self.tell = on_message
        self.heard: list[link.Order] = []
        self.silent: set[type] = set()
        self.unkillable = False
        self.kept: dict[str, str] = {}
        self.living: set[tuple[int, int]] = set()
        self.errors: dict[int, tuple[str, float | None]] = {}  # as @record wrote
        self.ended = anyio.Event()
        self.why = "the spawner ended because it was asked to"

    def keep(self, texts: Mapping[str, str], orders: Sequence[link.Order], on_kept: Callable[[], None]) -> None:
        self.kept |= texts
        for order in orders:
            self.send(order)
        on_kept()

    def send(self, message: link.Order) -> None:
        self.heard.append(message)
        if type(message) in self.silent:
            return
        match message:
            case link.PrepareStore():
                self.tell(link.StoreReady(message.cycle, message.host, 20000 + message.cycle))
            case link.Spawn():
                for worker in message.workers:
                    self.living.add((message.cycle, worker.local_rank))
                    pid = PID_OF_RANK_0 + 100 * message.cycle + worker.local_rank
                    self.tell(link.Spawned(message.cycle, worker.local_rank, pid, 0, "fork"))
            case link.KillTree():
                self.tell(link.Emptied(message.cycle, 0, ()))
            case link.ForkAhead() | link.Fence():
                pass
            case link.End():
                self.ended.set()
            case link.Signal():
                for cycle, local_rank in sorted(self.living):
                    if cycle == message.cycle and local_rank in (message.local_ranks or (local_rank,)):
                        self.exit(cycle, local_rank, signal=message.signal)

    def kill(self, reason: str) -> None:
        if not self.unkillable:
            self.why = reason
            self.ended.set()

    def process_state(self) -> str:
        return "runs"

    def exit(self, cycle: int, local_rank: int, *, code: int | None = None, signal: int | None = None) -> None:
        self.living.discard((cycle, local_rank))
        pid = PID_OF_RANK_0 + 100 * cycle + local_rank
        error, error_at_unix_s = self.errors.get(local_rank, ("", None))
        self.tell(link.Exited(cycle, local_rank, pid, code, signal, False, False, 0, error, error_at_unix_s))


class FakeSpawners:
    def __init__(self) -> None:
        self.started: list[ObedientSpawner] = []
        self.held_back = False  # until `let_go` is set
        self.let_go = anyio.Event()

    async def keep(
        self,
        spec: JobSpec,
        environment: Mapping[str, str],
        *,
        on_started: Callable[[Spawner], None],
        on_message: Callable[[link.FromSpawner], None],
        on_end_seen: Callable[[int, int], None] = nobody_asks,
    ) -> str:
        if self.held_back:
            await self.let_go.wait()
        spawner = ObedientSpawner(on_message)
        self.started.append(spawner)
        on_started(spawner)
        on_message(link.Ready(spawner.pid, 1, "3.11", "fork", "it is a test", (), ""))
        await spawner.ended.wait()
        return spawner.why


class World:
    """One supervisor without edges. `settle` lets all consequences of past actions happen."""

    def __init__(
        self,
        tasks: TaskGroup,
        log_dir: Path,
        *,
        clock: SetClock | None = None,
        spawners: Spawners | None = None,
        stacks: StackSource | None = None,
        keeps: bool = False,
        meetings: Meetings | None = None,
    ) -> None:
        """Other fakes may replace the obedient ones. `keeps`: for a returning supervisor."""
        self.clock = clock or SetClock()
        self.journal = FakeJournal()
        self.claims = FakeClaims(self.clock)
        self.tokens = FakeTokens()
        self.files = FakeFiles()
        self.checks = FakeChecks()
        self.gpus = FakeGpus()
        self.workers = FakeWorkers()
        self.stacks = FakeStacks()
        self.spawners = FakeSpawners()
        self.jobs: dict[str, JobRecord] = {}
        self.followers: list[Follow] = []  # a test adds its own after the job service
        self.inbox, self.engine_state = EngineInbox(), EngineState("n0")
        self.unsent, self.unkept = UnsentEvents(), WaitingJobs()
        self.publisher = EventPublisher(
            journal=self.journal, clock=self.clock, node_name="n0", unsent=self.unsent,
            unkept=self.unkept if keeps else None,
        )  # fmt: skip

        def start_soon(work: Callable[[], Coroutine[object, object, None]]) -> None:
            tasks.start_soon(work)

        self.start_soon = start_soon
        peers = LocalPeers(self.inbox.post)
        reports: dict[str, ReportQueue] = {}
        self.outbox = self._outbox(reports, meetings) if keeps else None
        self.node_stacks = NodeStacks(workers=self.workers, stacks=stacks or self.stacks)
        self.slow = KnownStragglers(peers.leads)
        self.prepared: list[str] = []
        self.job_service = JobService(
            inbox=self.inbox, engine_state=self.engine_state, stacks=self.node_stacks, peers=peers, jobs=self.jobs,
            publisher=self.publisher, workers=self.workers, clock=self.clock, claims=self.claims,
            log_dir=str(log_dir), prepare=self.prepared.append, slow=self.slow, meetings=meetings,
            keep=self.outbox.keep_now if self.outbox is not None else None,
        )  # fmt: skip
        self.view, self.saving = self._shown()
        self.followers += [self.view.announced, self.job_service.announced, self.saving.announced]
        self.performer = EnginePerformer(
            edges=self._edges(spawners or self.spawners, peers),
            jobs=self.jobs,
            publisher=self.publisher,
            inbox=self.inbox,
            engine_state=self.engine_state,
            stacks=self.node_stacks,
            start_soon=start_soon,
            followed_by=self.followers,
            reports=reports,
            saving=self.saving,
            outbox=self.outbox,
        )
        self.engine = Engine(
            clock=self.clock, inbox=self.inbox, engine_state=self.engine_state, performer=self.performer,
            jitter=lambda: 0.5, turn_every_s=math.inf,
        )  # fmt: skip
        tasks.start_soon(self.engine.run)
        if self.outbox is not None:
            tasks.start_soon(self.outbox.run)

    def _outbox(self, reports: dict[str, ReportQueue], meetings: Meetings | None) -> TurnOutbox:
        return TurnOutbox(
            inbox=self.inbox, engine_state=self.engine_state, jobs=self.jobs, publisher=self.publisher,
            clock=self.clock, reports=reports, unkept=self.unkept, meetings=meetings,
        )  # fmt: skip

    def _shown(self) -> tuple[ClusterView, ReportSaving]:
        view = ClusterView(
            job_service=self.job_service, engine_state=self.engine_state, publisher=self.publisher, unsent=self.unsent,
            jobs=self.jobs, clock=self.clock,
        )  # fmt: skip
        return view, ReportSaving(publisher=self.publisher, journal=self.journal, unsent=self.unsent, report=view.saved)

    def _edges(self, spawners: Spawners, peers: LocalPeers) -> Edges:
        return Edges(
            clock=self.clock,
            workers=self.workers,
            spawners=spawners,
            tokens=self.tokens,
            files=self.files,
            checks=self.checks,
            gpus=self.gpus,
            peers=peers,
            planner=WorkerPlanner(console=Console(), worker_socket="/s/worker.sock"),
        )

    @classmethod
    @asynccontextmanager
    async def opened(cls, log_dir: Path, *, meetings: Meetings | None = None) -> AsyncGenerator[Self]:
        async with anyio.create_task_group() as tasks:
            yield cls(tasks, log_dir, meetings=meetings)
            tasks.cancel_scope.cancel()

    async def settle(self) -> None:
        await settled()

    def next_deadline_s(self) -> float | None:
        return self.engine_state.next_deadline_s()

    async def pass_deadlines(self, *, until_s: float = float("inf")) -> None:
        """Fires the engine's timer as often as needed, until nothing has a deadline before that moment."""
        for _ in range(DEADLINES_MAX):
            await self.settle()
            deadline_s = self.next_deadline_s()
            if deadline_s is None or deadline_s > until_s:
                return
            self.clock.at_s = max(self.clock.at_s, deadline_s)
            self.inbox.post(node_messages.DeadlineReached())
        raise AssertionError("a deadline that has passed is not met")

    async def submit(self, spec: JobSpec) -> ObedientSpawner:
        await self.job_service.submit(spec, {"A": "secret"})
        await self.settle()
        return self.spawners.started[-1]
