"""One job on three simulated nodes: their real machines and the real coordinator in one heap of (time, event).

Orders and reports take their time, first come first served between two nodes, in any order between different ones. The
world plays spawners, workers, stores and people. Nothing waits; the same seed gives the same run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from supervisor.core.cluster import coordinator, endings
from supervisor.core.cluster import messages as cluster
from supervisor.core.facts import (
    Evidence,
    HangLimits,
    JobEvent,
    JobRules,
    Progress,
    RestartPolicyName,
    RestartRules,
    Verdict,
    WorkerExit,
)  # fmt: skip
from supervisor.core.node import messages, node

JOB = "job"
NODES = ("a", "b", "c")
LIMIT_S = 5.0
END_S = 20_000.0
FENCE_S, LOST_S = 4.0, 5.0  # a node that is cut off ends its workers before the coordinator gives it up


@dataclass
class Rank:
    cycle: int
    local_rank: int
    alive: bool = True
    silent_from_s: float | None = None
    ignores_term: bool = False
    code: int | None = None


@dataclass
class Record:
    """What the checkers look at."""

    published: list[tuple[float, str, JobEvent]] = field(default_factory=list[tuple[float, str, JobEvent]])
    spawned: list[tuple[str, messages.SpawnWorkers]] = field(default_factory=list[tuple[str, messages.SpawnWorkers]])
    verdicts: dict[str, list[Verdict]] = field(default_factory=lambda: {name: [] for name in NODES})
    faults: list[str] = field(default_factory=list[str])
    wishes: list[str] = field(default_factory=list[str])
    complaints: list[str] = field(default_factory=list[str])


class SimulatedNode:
    """One node's machines and the processes that they ask for."""

    def __init__(self, world: Cluster, name: str) -> None:
        self.world = world
        self.name = name
        self.state = node.initial_state(name)
        self.ranks: list[Rank] = []
        self.spawner = 0  # the number of the living one; 0: none
        self.is_silent = False
        self.is_lost = False
        self.first_rank = 0

    def send(self, event: messages.Event) -> None:
        if self.is_lost:
            return
        self.state, actions = node.step(self.state, event, now_s=self.world.now_s)
        for action in actions:
            self._perform(action)

    def _perform(self, action: messages.Action) -> None:
        world = self.world
        match action:
            case messages.StartSpawner(number=number):
                world.soon(lambda: self._come_up(number))
            case messages.PrepareStore(cycle=cycle):
                fails = world.chance(0.05)
                self._by_spawner(lambda: self._serve_store(cycle, fails=fails))
            case messages.SpawnWorkers():
                self._spawn(action)
            case messages.SignalWorkers():
                self._signal(action)
            case messages.KillTree(cycle=cycle):
                self._by_spawner(lambda: self._kill_tree(cycle))
            case messages.EndSpawner():
                self._by_spawner(lambda: self.lose_spawner("it ended as it was told"))
            case messages.KillSpawner():
                number = self.state.jobs[JOB].job.spawners
                world.soon(lambda: self.lose_spawner("it was killed as ordered", number))
            case messages.ReadProgress(local_rank=local_rank):
                self._read(local_rank)
            case messages.CollectEvidence(cycle=cycle):
                if world.chance(0.8):
                    world.soon(lambda: self.send(messages.EvidenceCollected(JOB, cycle, Evidence(source=self.name))))
            case messages.TellCoordinator(report=report):
                world.deliver(self.name, "coordinator", lambda: world.report(report))
            case messages.Publish(event=event):
                world.record.published.append((world.now_s, self.name, event))
            case messages.FinishJob(verdict=verdict):
                world.record.verdicts[self.name].append(verdict)
            case messages.ForkAhead() | messages.RespawnWorkers() | messages.TellRanks():
                pass

    # --- its end

    def lose(self, fence_s: float) -> None:
        """Nothing is heard of it from now on; what it runs has ended `fence_s` later."""
        self.is_lost = True

        def end_ranks() -> None:
            for rank in self.ranks:
                rank.alive = False

        self.world.after(fence_s, end_ranks)

    # --- the spawner

    def _by_spawner(self, what: Callable[[], None]) -> None:
        spawner = self.spawner

        def do() -> None:
            if spawner and spawner == self.spawner and not self.is_silent:
                what()

        self.world.after(0.01, do)

    def _come_up(self, number: int) -> None:
        if number != self.state.jobs[JOB].job.spawners or not self.state.jobs[JOB].job.has_spawner:
            return
        if self.world.chance(0.05):
            self.world.record.faults.append("spawner failed")
            self.send(messages.SpawnerLost(JOB, number, "it exited with code 1"))
            return
        self.spawner, self.is_silent = number, False
        self.send(messages.SpawnerReady(JOB, number))
        if self.world.chance(0.1):
            self.world.after(self.world.random.uniform(0, 60), lambda: self._die(number))
        elif self.world.chance(0.1):
            self.world.after(self.world.random.uniform(0, 60), lambda: self._fall_silent(number))

    def _die(self, number: int) -> None:
        if self.spawner == number:
            self.world.record.faults.append("spawner died")
            self.lose_spawner("it was killed by SIGKILL")

    def _fall_silent(self, number: int) -> None:
        if self.spawner == number:
            self.world.record.faults.append("spawner silent")
            self.is_silent = True

    def lose_spawner(self, reason: str, number: int | None = None) -> None:
        """Its workers die with it."""
        number = number or self.spawner
        if number == self.state.jobs[JOB].job.spawners:
            self.spawner = 0
            for rank in self.ranks:
                rank.alive = False
            self.send(messages.SpawnerLost(JOB, number, reason))

    def _serve_store(self, cycle: int, *, fails: bool) -> None:
        if fails:
            self.world.record.faults.append("store failed")
            self.send(messages.StoreFailed(JOB, cycle, "no port"))
            return
        self.send(messages.StoreReady(JOB, cycle, self.name, 20000 + cycle))
        if self.world.chance(0.1):
            self.world.after(self.world.random.uniform(0, 30), lambda: self._by_spawner(lambda: self._end_store(cycle)))

    def _end_store(self, cycle: int) -> None:
        self.world.record.faults.append("store died")
        self.send(messages.StoreFailed(JOB, cycle, "the store host was killed"))

    # --- the workers

    def _spawn(self, action: messages.SpawnWorkers) -> None:
        self.world.check_spawn(self.name, action)
        self.first_rank = action.assignment.first_rank
        for local_rank in range(self.world.rules.local_world_size):
            self._by_spawner(lambda local_rank=local_rank: self._start(action.assignment.cycle, local_rank))

    def _start(self, cycle: int, local_rank: int) -> None:
        world, draw = self.world, self.world.random
        rank = Rank(cycle, local_rank, ignores_term=world.chance(0.3))
        self.ranks.append(rank)
        self.send(messages.WorkerSpawned(JOB, cycle, local_rank, 100 + local_rank))
        limits = world.rules.hang_limits
        self.send(messages.ClientJoined(JOB, cycle, local_rank, limits, self._progress(rank)))
        life_s = draw.uniform(15, 20)
        if world.chance(0.1):
            world.after(draw.uniform(0, life_s), lambda: self._crash(rank))
        elif world.chance(0.1):
            world.after(draw.uniform(0, life_s), lambda: self._hang(rank))
        else:
            world.after(life_s, lambda: self._exit(rank, code=0) if rank.silent_from_s is None else None)

    def _crash(self, rank: Rank) -> None:
        if rank.alive:
            self.world.record.faults.append("crash")
            self._exit(rank, code=1)

    def _hang(self, rank: Rank) -> None:
        if rank.alive:
            self.world.record.faults.append("hang")
            rank.silent_from_s = self.world.now_s

    def _exit(self, rank: Rank, *, code: int | None = None, signal: int | None = None) -> None:
        if not rank.alive:
            return
        rank.alive, rank.code = False, code
        self.send(messages.WorkerEndSeen(JOB, rank.cycle, rank.local_rank))
        ended = WorkerExit(
            rank.local_rank, self.first_rank + rank.local_rank, 100 + rank.local_rank, code, signal, self.world.now_s
        )
        self._by_spawner(lambda: self.send(messages.WorkerExited(JOB, rank.cycle, ended)))

    def _signal(self, action: messages.SignalWorkers) -> None:
        for rank in self.ranks:
            if rank.cycle != action.cycle or not rank.alive or rank.local_rank not in (
                action.local_ranks or (rank.local_rank,)
            ):  # fmt: skip
                continue
            if action.signal == 9:
                self._by_spawner(lambda rank=rank: self._exit(rank, signal=9))
            elif not rank.ignores_term:
                self.world.soon(lambda rank=rank: self._exit(rank, signal=action.signal))

    def _kill_tree(self, cycle: int) -> None:
        for rank in self.ranks:
            if rank.cycle == cycle:
                self._exit(rank, signal=9)
        self._by_spawner(lambda: self.send(messages.WorkersEmptied(JOB, cycle, ())))

    def _read(self, local_rank: int) -> None:
        rank = next((each for each in self.ranks if each.alive and each.local_rank == local_rank), None)
        if rank is not None:
            self.send(messages.ProgressRead(JOB, rank.cycle, local_rank, self._progress(rank)))

    def _progress(self, rank: Rank) -> Progress:
        at_s = self.world.now_s if rank.silent_from_s is None else rank.silent_from_s
        return Progress(0.0, 0.0, heartbeat_at_s=at_s, heartbeats=1, read_at_s=self.world.now_s)


class Cluster:
    """`run()` plays one job to its end on all nodes."""

    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.rules = JobRules(
            JOB,
            local_world_size=draw.randint(1, 2),
            hang_limits=HangLimits(initial_heartbeat_s=LIMIT_S, heartbeat_s=LIMIT_S),
            restart=RestartRules(
                policy=draw.choice(list(RestartPolicyName)),
                max_restarts=draw.randint(0, 4),
                min_nodes=draw.randint(1, 3),
            ),
            prepares_ahead=draw.random() < 0.7,
        )
        self.delay_max_s = draw.choice([0.0, 0.3, 3.0])
        self.now_s = 0.0
        self.record = Record()
        self.coordinator = coordinator.initial_state(JOB)
        self.nodes = {name: SimulatedNode(self, name) for name in NODES}
        self._on_the_way_s: dict[tuple[str, str], float] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._sequence, what))

    def soon(self, what: Callable[[], None]) -> None:
        self.after(self.random.uniform(0.0, 0.2), what)

    def chance(self, odds: float) -> bool:
        return self.random.random() < odds

    def deliver(self, sender: str, receiver: str, what: Callable[[], None]) -> None:
        pair = sender, receiver
        at_s = max(self._on_the_way_s.get(pair, 0.0), self.now_s + self.random.uniform(0.0, self.delay_max_s))
        self._on_the_way_s[pair] = at_s
        self.after(at_s - self.now_s, lambda: None if self._is_lost(receiver) else what())

    def _is_lost(self, name: str) -> bool:
        return name in self.nodes and self.nodes[name].is_lost

    def _all_know(self) -> bool:
        return all(self.record.verdicts[name] for name, each in self.nodes.items() if not each.is_lost)

    def report(self, report: cluster.Event) -> None:
        jitter = self.random.random()
        self.coordinator, actions = coordinator.step(self.coordinator, report, now_s=self.now_s, jitter=jitter)
        for action in actions:
            match action:
                case cluster.Send(name, order):
                    event = messages.Ordered(JOB, order)
                    self.deliver("coordinator", name, lambda name=name, event=event: self.nodes[name].send(event))
                case cluster.Publish(event=event):
                    self.record.published.append((self.now_s, "coordinator", event))

    def run(self) -> Record:
        for each in self.nodes.values():
            self.soon(lambda each=each: each.send(messages.JobSubmitted(self.rules)))
        self._people()
        self._lose_nodes()
        while not (self._all_know() and endings.is_over(self.coordinator)):
            timers = [node.next_deadline_s(each.state) for each in self.nodes.values() if not each.is_lost]
            timers.append(coordinator.next_deadline_s(self.coordinator))
            deadline_s = min((each for each in timers if each is not None), default=None)
            if deadline_s is not None and (not self._heap or deadline_s <= self._heap[0][0]):
                self.now_s = max(self.now_s, deadline_s)
                for each in self.nodes.values():
                    each.send(messages.DeadlineReached())
                self.report(cluster.DeadlineReached())
            elif self._heap:
                self.now_s, _, what = heapq.heappop(self._heap)
                what()
            else:
                self.record.complaints.append(f"nothing happens any more at {self.now_s:.1f} s")
                break
            if self.now_s > END_S:
                self.record.complaints.append("the job does not end")
                break
        return self.record

    def check_spawn(self, name: str, action: messages.SpawnWorkers) -> None:
        cycle = action.assignment.cycle
        for each in self.nodes.values():
            if any(rank.alive and rank.cycle < cycle for rank in each.ranks):
                self.record.complaints.append(
                    f"{name} starts cycle {cycle} at {self.now_s:.2f} s beside older workers on {each.name}"
                )
        self.record.spawned.append((name, action))

    def _lose_nodes(self) -> None:
        """Machines that burn and networks that are cut; never all of them, since one leads the job."""
        for name in self.random.sample(NODES, self.random.choice([0, 0, 0, 1, 2])):
            self.after(self.random.uniform(0, 60), lambda name=name: self._lose(name))

    def _lose(self, name: str) -> None:
        self.record.faults.append("node lost")
        self.nodes[name].lose(self.random.choice([0.0, FENCE_S]))
        # What it had said before may still be on the way: the stream hands that over before it tells of the loss.
        heard_s = max(LOST_S, self._on_the_way_s.get((name, "coordinator"), 0.0) - self.now_s)
        self.after(heard_s, lambda: self.report(cluster.NodeLost(name, f"node {name} is lost")))

    def _people(self) -> None:
        def wish(event: messages.Event, name: str) -> None:
            def say() -> None:
                self.record.wishes.append(name)
                on = self.nodes[self.random.choice(NODES)]
                if JOB in on.state.jobs:
                    on.send(event)

            self.after(self.random.uniform(0, 60), say)

        if self.chance(0.2):
            for signal in self.random.choice([(0,), (15,), (2, 2)]):
                wish(messages.StopRequested(JOB, f"stop by {signal}", signal), "stop")
        if self.chance(0.1):
            wish(messages.RestartRequested(JOB, "a person asked"), "restart")
