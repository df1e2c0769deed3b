"""One job on one simulated node: the real node and coordinator in one heap of (time, event), with seeded faults.

The world plays spawner, workers, store, client pages and people. The spawner is disobedient: it answers late and out of
order, falls silent for a while or for good, and now and then can't even be killed. Hung ranks may wake up and exit.
Nothing waits; the same seed gives the same run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from supervisor.core import job_phases as phases
from supervisor.core.cluster import coordinator
from supervisor.core.cluster import messages as cluster
from supervisor.core.facts import (
    Evidence,
    HangLimits,
    JobEvent,
    JobRules,
    RestartPolicyName,
    RestartRules,
    StackGroup,
    WorkerExit,
)  # fmt: skip
from supervisor.core.node import messages, node
from tests.core.simulated_parts import HEARTBEAT_S, Odds, Record, SimulatedWorker

JOB = "job"
HEARTBEAT_LIMIT_S = 5.0
END_S = 100_000.0


class World:
    """`run()` plays one job to its end."""

    def __init__(self, seed: int, odds: Odds) -> None:
        self.random = random.Random(seed)
        self.odds = odds
        draw = self.random
        self.rules = JobRules(
            JOB,
            local_world_size=draw.randint(1, 4),
            hang_limits=HangLimits(initial_heartbeat_s=HEARTBEAT_LIMIT_S, heartbeat_s=HEARTBEAT_LIMIT_S),
            restart=RestartRules(
                policy=draw.choice(list(RestartPolicyName)), max_restarts=draw.randint(0, 4), max_no_progress_cycles=0
            ),
            rank_termination_signal=draw.choice([9, 15]),
            completion_grace_s=draw.choice([None, 40.0]),
        )
        self.late_reports = draw.random() < odds.late_reports
        self.now_s = 0.0
        self.node = node.initial_state("node0")
        self.coordinator = coordinator.initial_state(JOB)
        self.workers: list[SimulatedWorker] = []
        self.slow_answers = draw.random() < odds.slow_answers
        self.reports_under_way = 0
        self.reported_at_s = 0.0
        self.spawner = 0  # which one lives; 0: none
        self.spawners = 0
        self.silent_until_s: dict[int, float] = {}  # by spawner; answers come then
        self.record = Record()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._pids = 1000

    # --- time

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._sequence, what))

    def soon(self, what: Callable[[], None]) -> None:
        self.after(self.random.uniform(0.0, 0.2), what)

    def chance(self, odds: float) -> bool:
        return self.random.random() < odds

    def run(self) -> Record:
        self.tell(messages.JobSubmitted(self.rules))
        self._people()
        while not self.record.verdicts:
            timers = (node.next_deadline_s(self.node), coordinator.next_deadline_s(self.coordinator))
            deadline_s = min((each for each in timers if each is not None), default=None)
            next_s = self._heap[0][0] if self._heap else END_S
            if deadline_s is not None and deadline_s <= next_s:
                self.now_s = max(self.now_s, deadline_s)
                self.tell(messages.DeadlineReached())
                self.report(cluster.DeadlineReached())
            elif self._heap:
                self.now_s, _, what = heapq.heappop(self._heap)
                what()
                self._check_deadline()
                if self.chance(self.odds.early_timer):
                    self._early_timer()
            else:
                self.record.complaints.append(f"nothing happens any more at {self.now_s:.1f} s: {self.node.jobs}")
                break
            if self.now_s > END_S / 2:
                self.record.complaints.append("the job does not end")
                break
        return self.record

    def _check_deadline(self) -> None:
        """Where it is not the training that is waited for, something has a deadline."""
        phase = self.node.jobs[JOB].job.phase
        timers = (node.next_deadline_s(self.node), coordinator.next_deadline_s(self.coordinator))
        is_training = isinstance(phase, phases.Running) and any(worker.alive for worker in self.workers)
        if self.record.verdicts or self.reports_under_way or is_training or any(each is not None for each in timers):
            return
        if not isinstance(phase, phases.Running):  # A rank that has just ended is told of at once.
            self.record.complaints.append(f"{phase} waits without a deadline at {self.now_s:.1f} s")

    def _early_timer(self) -> None:
        deadline_s = node.next_deadline_s(self.node)
        if deadline_s is None or deadline_s > self.now_s:
            after, actions = node.step(self.node, messages.DeadlineReached(), now_s=self.now_s)
            if actions or after != self.node:
                self.record.complaints.append("an early deadline changed something")

    # --- node and coordinator

    def tell(self, event: messages.Event) -> None:
        self.node, actions = node.step(self.node, event, now_s=self.now_s)
        for action in actions:
            self.perform(action)

    def _deliver(self, report: cluster.Event) -> None:
        self.reports_under_way -= 1
        self.report(report)

    def report(self, event: cluster.Event) -> None:
        jitter = self.random.random()
        self.coordinator, actions = coordinator.step(self.coordinator, event, now_s=self.now_s, jitter=jitter)
        for action in actions:
            match action:
                case cluster.Send("node0", order):
                    self.tell(messages.Ordered(JOB, order))
                case cluster.Send():
                    raise AssertionError(f"{action} is for a node that nobody knows")
                case cluster.Publish(event=said):
                    self.record.published.append((self.now_s, said))

    def perform(self, action: messages.Action) -> None:
        match action:
            case messages.StartSpawner() | messages.EndSpawner() | messages.KillSpawner() | messages.PrepareStore():
                self._perform_by_spawner(action)
            case messages.ForkAhead():
                pass
            case messages.SpawnWorkers():
                self._spawn(action)
            case messages.RespawnWorkers() | messages.TellRanks():
                raise AssertionError("no rank of this simulation has a Wrapper")
            case messages.SignalWorkers():
                self.record.signals.append((self.now_s, action))
                self._by_spawner(lambda: self._signal(action))
            case messages.KillTree(cycle=cycle):
                self.record.signals.append((self.now_s, action))
                self._by_spawner(lambda: self._kill_tree(cycle))
            case messages.ReadProgress(local_rank=local_rank):
                self._read(local_rank)
            case messages.CollectEvidence():
                if not self.chance(self.odds.no_evidence):
                    evidence = Evidence((StackGroup((0,), "train.py:1 in step"),), source="py-spy")
                    self.soon(lambda: self.tell(messages.EvidenceCollected(JOB, action.cycle, evidence)))
            case messages.Publish(event=event):
                self.record.published.append((self.now_s, event))
                self._check_hang(event)
            case messages.TellCoordinator(report=report):
                late = self.late_reports and isinstance(report, cluster.JobOpened | cluster.NodeFailed)
                self.reports_under_way += 1
                # None overtakes another (engine/report_queue.py).
                self.reported_at_s = max(self.reported_at_s, self.now_s + (0.5 if late else 0.0))
                self.after(self.reported_at_s - self.now_s, lambda: self._deliver(report))
            case messages.FinishJob(verdict=verdict):
                self.record.verdicts.append(verdict)

    # --- what the spawner does

    def _perform_by_spawner(
        self, action: messages.StartSpawner | messages.EndSpawner | messages.KillSpawner | messages.PrepareStore
    ) -> None:
        match action:
            case messages.StartSpawner(number=number):
                self._start_spawner(number)
            case messages.PrepareStore(cycle=cycle):
                self._by_spawner(lambda: self._serve_store(cycle))
            case messages.EndSpawner():
                number = self.spawner
                self._by_spawner(lambda: self._end_spawner(number, "it ended as it was told"))
            case messages.KillSpawner():
                self._kill_spawner_on_order(self.spawners)

    def _by_spawner(self, what: Callable[[], None]) -> None:
        """What the living spawner does, as soon as it does anything."""
        spawner = self.spawner
        delay_s = self.random.uniform(0.0, 2.0) if self.slow_answers else 0.01

        def do() -> None:
            if not spawner or spawner != self.spawner:
                return
            silent_until_s = self.silent_until_s.get(spawner, 0.0)
            if silent_until_s > self.now_s:
                if silent_until_s < END_S:
                    self.after(silent_until_s - self.now_s + delay_s, do)
            else:
                what()

        self.after(delay_s, do)

    def _start_spawner(self, number: int) -> None:
        self.spawners = number

        def ready() -> None:
            if number != self.spawners or self.spawner < 0:
                return
            if self.chance(self.odds.spawner_fails):
                self.record.faults.append("spawner failed")
                self.tell(messages.SpawnerLost(JOB, number, "it exited with code 1"))
                return
            self.spawner = number
            self.tell(messages.SpawnerReady(JOB, number))
            if self.chance(self.odds.spawner_dies):
                self.after(self.random.uniform(0, 60), lambda: self._die(number))
            elif self.chance(self.odds.silent):
                self.after(self.random.uniform(0, 60), lambda: self._silence(number))

        self.soon(ready)

    def _silence(self, number: int) -> None:
        """SIGSTOP, or a file system that never answers."""
        if self.spawner == number:
            self.record.faults.append("spawner silent")
            wakes = self.chance(self.odds.wakes)
            self.silent_until_s[number] = self.now_s + self.random.uniform(0, 60) if wakes else END_S

    def _die(self, number: int) -> None:
        if self.spawner == number:
            self.record.faults.append("spawner died")
            self._end_spawner(number, "it was killed by SIGKILL")

    def _kill_spawner_on_order(self, number: int) -> None:
        is_silent = self.silent_until_s.get(number, 0.0) > self.now_s
        if is_silent and self.chance(self.odds.unkillable):
            self._lose_spawner()  # Its workers die, it stays in the kernel and says nothing.
            return
        self.after(0.01, lambda: self._end_spawner(number, "it was killed as ordered"))

    def _end_spawner(self, number: int, reason: str) -> None:
        if number == self.spawners and self.spawner in (0, number):
            self._lose_spawner()
            self.tell(messages.SpawnerLost(JOB, number, reason))

    def _lose_spawner(self) -> None:
        self.spawner = 0
        for worker in self.workers:
            worker.alive = False

    def _serve_store(self, cycle: int) -> None:
        if self.chance(self.odds.store_fails):
            self.record.faults.append("store failed")
            self.tell(messages.StoreFailed(JOB, cycle, "no port"))
            return
        self.tell(messages.StoreReady(JOB, cycle, "127.0.0.1", 29500))
        if self.chance(self.odds.store_dies):
            self.after(self.random.uniform(0, 60), lambda: self._by_spawner(lambda: self._end_store(cycle)))

    def _end_store(self, cycle: int) -> None:
        if any(each.cycle == cycle and each.alive for each in self.workers):
            self.record.faults.append("store died")
            self.tell(messages.StoreFailed(JOB, cycle, "the store host was killed"))

    def _spawn(self, action: messages.SpawnWorkers) -> None:
        cycle = action.assignment.cycle
        if any(each.alive and not each.stuck for each in self.workers):
            self.record.complaints.append(f"cycle {cycle} starts beside workers of an older one")
        self.record.spawned_cycles.append(cycle)
        for local_rank in range(self.rules.local_world_size):
            self._by_spawner(lambda local_rank=local_rank: self._fork(cycle, local_rank))

    def _fork(self, cycle: int, local_rank: int) -> None:
        if self.chance(self.odds.spawn_fails):
            self.record.faults.append("spawn failed")
            self.tell(messages.SpawnFailed(JOB, cycle, local_rank, "cannot start x: not found", 127))
            return
        self._pids += 1
        worker = SimulatedWorker(cycle, local_rank, self._pids, self.now_s)
        worker.ignores_term = self.chance(self.odds.ignores_term)
        worker.stuck = self.chance(self.odds.stuck)
        self.workers.append(worker)
        self.tell(messages.WorkerSpawned(JOB, cycle, local_rank, worker.pid))
        self.soon(lambda: self._hello(worker))
        life_s = self.random.uniform(10, 40)
        if self.chance(self.odds.crashes):
            self.after(self.random.uniform(0, life_s), lambda: self._fail(worker))
        elif self.chance(self.odds.hangs):
            self.after(self.random.uniform(0, life_s), lambda: self._fall_silent(worker))
        else:
            self.after(life_s, lambda: self._exit(worker, code=0) if worker.silent_from_s is None else None)

    # --- what workers do

    def _hello(self, worker: SimulatedWorker) -> None:
        if worker.alive:
            worker.client = True
            limits = self.rules.hang_limits
            progress = worker.progress(self.now_s)
            self.tell(messages.ClientJoined(JOB, worker.cycle, worker.local_rank, limits, progress))

    def _fail(self, worker: SimulatedWorker) -> None:
        if worker.stuck:
            self._fall_silent(worker)  # In state D nobody dies.
        elif worker.alive:
            self.record.faults.append("crash")
            code, signal = self.random.choice([(1, None), (None, 11), (None, 6)])
            self._exit(worker, code=code, signal=signal)

    def _fall_silent(self, worker: SimulatedWorker) -> None:
        if worker.alive:
            self.record.faults.append("hang")
            worker.silent_from_s = self.now_s
            if self.chance(self.odds.hang_ends) and not worker.stuck:
                # Around the moment at which the hang is found.
                self.after(HEARTBEAT_LIMIT_S + self.random.uniform(-1.0, 1.0), lambda: self._exit(worker, code=0))

    def _exit(self, worker: SimulatedWorker, *, code: int | None = None, signal: int | None = None) -> None:
        if not worker.alive:
            return
        worker.alive = False
        worker.exit_code = code
        seen = messages.WorkerEndSeen(JOB, worker.cycle, worker.local_rank)
        self.soon(lambda: self.tell(seen))
        known = WorkerExit(worker.local_rank, worker.local_rank, worker.pid, code, signal, self.now_s)
        self._by_spawner(lambda: self.tell(messages.WorkerExited(JOB, worker.cycle, known)))
        if self.chance(0.5):
            self.tell(messages.ClientLeft(JOB, worker.cycle, worker.local_rank))

    def _signal(self, action: messages.SignalWorkers) -> None:
        for worker in list(self.workers):
            wanted = not action.local_ranks or worker.local_rank in action.local_ranks
            if worker.cycle == action.cycle and wanted and worker.alive and not worker.stuck:
                if action.signal == 9:
                    self._exit(worker, signal=9)
                elif not worker.ignores_term:
                    answer = 0 if self.chance(0.3) else None
                    self._exit(worker, code=answer, signal=None if answer == 0 else action.signal)

    def _kill_tree(self, cycle: int) -> None:
        stuck: list[int] = []
        for worker in self.workers:
            if worker.cycle == cycle and worker.alive:
                if worker.stuck:
                    stuck.append(worker.pid)
                else:
                    self._exit(worker, signal=9)
        self._by_spawner(lambda: self.tell(messages.WorkersEmptied(JOB, cycle, tuple(stuck))))

    def _read(self, local_rank: int) -> None:
        for worker in self.workers:
            if worker.alive and worker.client and worker.local_rank == local_rank:
                self.tell(messages.ProgressRead(JOB, worker.cycle, local_rank, worker.progress(self.now_s)))

    def _check_hang(self, event: JobEvent) -> None:
        if event.kind != "hang_detected":
            return
        worker = next(each for each in reversed(self.workers) if each.local_rank == event.rank)
        if worker.silent_from_s is None or self.now_s < worker.silent_from_s + HEARTBEAT_LIMIT_S - HEARTBEAT_S:
            self.record.complaints.append(f"a hang verdict came early: {event.reason}")

    # --- what people do

    def _people(self) -> None:
        def wish(event: messages.Event, name: str) -> None:
            def say() -> None:
                self.record.wishes.append(name)
                self.tell(event)

            self.after(self.random.uniform(0, 90), say)

        if self.chance(self.odds.stop):
            for signal in self.random.choice([(0,), (15,), (2, 2), (15, 0), (0, 2)]):
                wish(messages.StopRequested(JOB, f"stop by {signal}", signal), "stop")
        if self.chance(self.odds.restart):
            wish(messages.RestartRequested(JOB, "a person asked"), "restart")
        if self.chance(self.odds.control):
            action = self.random.choice(["continue", "exclude_this_node", "shutdown_workload"])
            for cycle in range(3):
                wish(messages.ControlRequested(JOB, cycle, 0, action, "bad loss"), action)
