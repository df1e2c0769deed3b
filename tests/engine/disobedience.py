"""A spawner that does what it likes, its ranks, and the virtual time in which all that happens.

Answers come late, twice and out of order, or not at all for some kinds of orders. A spawner dies, ends without an
order, is stopped until it is killed, or can't be killed for a while and then answers again. Ranks crash, hang, wake up,
and exit with 0 while their hang is examined. The same seed gives the same run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.core.facts import Evidence, HangLimits, Progress
from supervisor.core.node import node_messages
from supervisor.core.process_facts import Frame, RankLook
from supervisor.ports.edges import Spawner, nobody_asks
from tests.engine.world import SetClock

HEARTBEAT_LIMIT_S = 5.0
ANSWERED = (link.PrepareStore, link.Spawn, link.Signal, link.KillTree, link.End)


class Schedule:
    """Future events by virtual time."""

    def __init__(self, clock: SetClock, seed: int) -> None:
        self.clock = clock
        self.random = random.Random(seed)
        self.calm: set[str] = set()  # ids of jobs without faults
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.clock.at_s + delay_s, self._sequence, what))

    def chance(self, odds: float) -> bool:
        return self.random.random() < odds

    async def sleep(self, delay_s: float) -> None:
        over = anyio.Event()
        self.after(delay_s, over.set)
        await over.wait()

    @property
    def next_s(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pass_next(self) -> None:
        self.clock.at_s, _, what = heapq.heappop(self._heap)
        what()


@dataclass
class Rank:
    job_id: str
    cycle: int
    local_rank: int
    pid: int
    ignores_term: bool
    silent_from_s: float | None = None
    is_alive: bool = True
    is_end_seen: bool = False


@dataclass
class Population:
    """The ranks of all jobs, and errors in how they were treated."""

    schedule: Schedule
    post: Callable[[node_messages.Event], None]
    ranks: list[Rank] = field(default_factory=list[Rank])
    faults: dict[str, int] = field(default_factory=dict[str, int])  # by job id
    complaints: list[str] = field(default_factory=list[str])

    def blame(self, job_id: str) -> None:
        self.faults[job_id] = self.faults.get(job_id, 0) + 1

    def living(self, job_id: str) -> list[Rank]:
        return [rank for rank in self.ranks if rank.job_id == job_id and rank.is_alive]

    def unseen(self, job_id: str) -> list[Rank]:
        return [rank for rank in self.ranks if rank.job_id == job_id and not rank.is_end_seen]

    def read_progress(self, job_id: str, cycle: int, local_rank: int) -> Progress | None:
        for rank in self.living(job_id):
            if (rank.cycle, rank.local_rank) == (cycle, local_rank):
                now_s = self.schedule.clock.at_s
                beat_s = now_s if rank.silent_from_s is None else rank.silent_from_s
                return Progress(0.0, 0.0, heartbeat_at_s=beat_s, heartbeats=1, read_at_s=now_s)
        return None

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
        await self.schedule.sleep(self.schedule.random.uniform(0.0, 2 * budget_s))
        return Evidence(source="fake")

    async def look(self, pids: Mapping[int, int], *, budget_s: float) -> tuple[RankLook, ...]:
        await self.schedule.sleep(self.schedule.random.uniform(0.0, 2 * budget_s))
        return tuple(RankLook(rank, (Frame("/t.py", "main", pid),)) for rank, pid in pids.items())

    def is_stopped(self, pid: int) -> bool:
        return False


class DisobedientSpawner:
    """One process of a spawner. A calm job has an obedient one."""

    def __init__(
        self,
        job_id: str,
        population: Population,
        on_message: Callable[[link.FromSpawner], None],
        on_end_seen: Callable[[int, int], None],
    ) -> None:
        self.pid = 77
        self.ended = anyio.Event()
        self.why = "the spawner ended because it was asked to"
        self._job_id = job_id
        self._population = population
        self._schedule = population.schedule
        self._on_message = on_message
        self._on_end_seen = on_end_seen
        is_calm = job_id in self._schedule.calm
        self._odds = 0.0 if is_calm else 1.0
        self._is_gone = False  # it starts nothing any more
        self._is_stopped = False
        self._is_unkillable = self._chance(0.1)
        self._delay_max_s = 2.0 if self._chance(0.5) else 0.01
        self._ignored = {kind for kind in ANSWERED if self._chance(0.03)}
        self._served: set[int] = set()

    def begin(self) -> None:
        self._on_message(link.Ready(self.pid, 1, "3.11", "fork", "it is a test", (), ""))
        after_s = self._schedule.random.uniform(0.0, 60.0)
        if self._chance(0.15):
            self._schedule.after(after_s, lambda: self._end("it was killed by SIGKILL"))
        elif self._chance(0.05):
            self._schedule.after(after_s, lambda: self._end("the spawner ended because it was asked to"))  # nobody has
        elif self._chance(0.1):
            self._schedule.after(after_s, self._stop)

    # --- see ports.Spawner

    def keep(self, texts: Mapping[str, str], orders: Sequence[link.Order], on_kept: Callable[[], None]) -> None:
        del texts, on_kept  # no other supervisor comes
        for order in orders:
            self.send(order)

    def send(self, message: link.Order) -> None:
        if type(message) in self._ignored:
            self._population.blame(self._job_id)
            return
        match message:
            case link.PrepareStore(cycle=cycle):
                self._soon(lambda: self._serve(cycle))
            case link.Spawn(cycle=cycle, workers=workers):
                older = [rank for rank in self._population.living(self._job_id) if rank.cycle != cycle]
                if older:
                    self._population.complaints.append(f"cycle {cycle} of {self._job_id} starts beside {older}")
                for worker in workers:
                    self._soon(lambda worker=worker: self._fork(cycle, worker.local_rank))
            case link.Signal(cycle=cycle, signal=signal, local_ranks=local_ranks):
                self._soon(lambda: self._signal(cycle, signal, local_ranks))
            case link.KillTree(cycle=cycle):
                self._soon(lambda: self._empty(cycle))
            case link.End():
                self._soon(lambda: self._end(self.why))
            case link.ForkAhead() | link.Fence():
                pass

    def kill(self, reason: str) -> None:
        self.why = reason
        self._is_gone = True
        for rank in self._population.living(self._job_id):
            self._exit(rank, signal=9)
        late_s = self._schedule.random.uniform(15.0, 60.0) if self._is_unkillable else 0.01
        self._schedule.after(late_s, self.ended.set)

    def process_state(self) -> str:
        return "is a test"

    # --- what it does

    def _chance(self, odds: float) -> bool:
        return self._schedule.chance(odds * self._odds)

    def _soon(self, what: Callable[[], None]) -> None:
        def do() -> None:
            if not self._is_stopped and not self._is_gone:
                what()

        self._schedule.after(self._schedule.random.uniform(0.0, self._delay_max_s), do)

    def _say(self, message: link.FromSpawner) -> None:
        """Sends messages late and independently. One that can't be killed finally sends what it had begun to send."""

        def say() -> None:
            is_heard = self._is_unkillable or not self._is_gone
            if is_heard and not self._is_stopped and not self.ended.is_set():
                self._on_message(message)
                if self._chance(0.1):
                    self._on_message(message)

        late_s = self._schedule.random.uniform(0.0, self._delay_max_s)
        pause_s = 20.0 * self._is_unkillable * self._chance(0.5)
        if pause_s:
            self._population.blame(self._job_id)
        self._schedule.after(late_s + pause_s, say)

    def _end(self, reason: str) -> None:
        if not self._is_gone:
            self._population.blame(self._job_id)
            self.kill(reason)

    def _stop(self) -> None:
        self._population.blame(self._job_id)
        self._is_stopped = True

    def _serve(self, cycle: int) -> None:
        if self._chance(0.05):
            self._population.blame(self._job_id)
            self._say(link.StoreFailed(cycle, "no port"))
            return
        self._say(link.StoreReady(cycle, "127.0.0.1", 20000 + cycle))
        if self._chance(0.05):
            self._population.blame(self._job_id)
            dies_s = self._schedule.random.uniform(0.0, 60.0)
            self._schedule.after(dies_s, lambda: self._say(link.StoreExited(cycle, 78, "it was ended by SIGKILL")))

    def _fork(self, cycle: int, local_rank: int) -> None:
        if self._chance(0.03):
            self._population.blame(self._job_id)
            self._say(link.SpawnFailed(cycle, local_rank, "cannot start x: not found; check PATH", 127))
            return
        pid = 1000 + len(self._population.ranks)
        rank = Rank(self._job_id, cycle, local_rank, pid, ignores_term=self._chance(0.2))
        self._population.ranks.append(rank)
        self._say(link.Spawned(cycle, local_rank, pid, 0, "fork"))
        self._schedule.after(self._delay_max_s, lambda: self._join(rank))
        life_s = self._schedule.random.uniform(5.0, 60.0)
        if self._chance(0.2):
            self._schedule.after(life_s, lambda: self._crash(rank))
        elif self._chance(0.2):
            self._schedule.after(life_s, lambda: self._hang(rank))
        else:
            self._schedule.after(life_s, lambda: self._exit(rank, code=0))

    def _join(self, rank: Rank) -> None:
        if rank.is_alive:
            progress = self._population.read_progress(rank.job_id, rank.cycle, rank.local_rank)
            assert progress is not None
            limits = HangLimits(initial_heartbeat_s=HEARTBEAT_LIMIT_S, heartbeat_s=HEARTBEAT_LIMIT_S)
            self._population.post(
                node_messages.ClientJoined(rank.job_id, rank.cycle, rank.local_rank, limits, progress)
            )

    def _crash(self, rank: Rank) -> None:
        if rank.is_alive:
            self._population.blame(self._job_id)
            self._exit(rank, code=1)

    def _hang(self, rank: Rank) -> None:
        if not rank.is_alive:
            return
        self._population.blame(self._job_id)
        rank.silent_from_s = self._schedule.clock.at_s
        if self._chance(0.4):  # around the time when the hang is found, or while stacks are taken
            wakes_s = HEARTBEAT_LIMIT_S + self._schedule.random.uniform(-0.2, 0.6)
            self._schedule.after(wakes_s, lambda: self._exit(rank, code=0))

    def _exit(self, rank: Rank, *, code: int | None = None, signal: int | None = None) -> None:
        if not rank.is_alive:
            return
        rank.is_alive = False

        def see() -> None:
            rank.is_end_seen = True
            self._on_end_seen(rank.cycle, rank.local_rank)

        self._schedule.after(self._schedule.random.uniform(0.0, 1.0), see)
        self._say(link.Exited(rank.cycle, rank.local_rank, rank.pid, code, signal, False, False, 0))

    def _signal(self, cycle: int, signal: int, local_ranks: tuple[int, ...]) -> None:
        for rank in self._population.living(self._job_id):
            is_meant = rank.cycle == cycle and rank.local_rank in (local_ranks or (rank.local_rank,))
            if is_meant and (signal == 9 or not rank.ignores_term):
                self._exit(rank, signal=signal)

    def _empty(self, cycle: int) -> None:
        for rank in self._population.living(self._job_id):
            if rank.cycle == cycle:
                self._exit(rank, signal=9)
        self._say(link.Emptied(cycle, 0, ()))


class DisobedientSpawners:
    """Spawners for tests; see ports.Spawners."""

    def __init__(self, population: Population) -> None:
        self._population = population

    async def keep(
        self,
        spec: JobSpec,
        environment: Mapping[str, str],
        *,
        on_started: Callable[[Spawner], None],
        on_message: Callable[[link.FromSpawner], None],
        on_end_seen: Callable[[int, int], None] = nobody_asks,
    ) -> str:
        schedule, is_calm = self._population.schedule, spec.job_id in self._population.schedule.calm
        spawner = DisobedientSpawner(spec.job_id, self._population, on_message, on_end_seen)
        if not is_calm:
            await schedule.sleep(schedule.random.choice([0.01, 2.0, 30.0]))
            if schedule.chance(0.05):
                self._population.blame(spec.job_id)
                return "cannot start the spawner: no memory; free some"
        on_started(spawner)
        if is_calm or not schedule.chance(0.02):
            spawner.begin()
        else:
            self._population.blame(spec.job_id)  # it never starts
        await spawner.ended.wait()
        return spawner.why
