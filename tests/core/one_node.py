"""How do tests join a node and the coordinator of its one job, as in the engine? The test plays everything outside."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.cluster import coordinator, job_termination
from supervisor.core.facts import JobEvent, JobRules, JobState, JobView, Progress, RestartRules, Verdict, WorkerExit
from supervisor.core.gpu_memory import MemoryRules
from supervisor.core.node import node, node_messages
from supervisor.core.node_check_facts import CheckPlan

A = TypeVar("A")
JOB = "job"
NOW = -1  # the number of the live spawner


def rules(world_size: int = 2, *, max_restarts: int = 3, **changed: object) -> JobRules:
    restart = RestartRules(max_restarts=max_restarts)
    return JobRules(JOB, world_size, **({"restart": restart} | changed))  # pyright: ignore[reportArgumentType]


class OneNode:
    """`actions` holds the output since the last `send`, without messages to the coordinator."""

    def __init__(
        self,
        of: JobRules,
        *,
        now_s: float = 0.0,
        spawner_obeys: bool = True,
        checks: tuple[CheckPlan, ...] = (),
        memory: MemoryRules | None = None,
    ) -> None:
        """`spawner_obeys`: the spawner ends as soon as it gets the order."""
        self.spawner_obeys = spawner_obeys
        self.rules = of
        self.now_s = now_s
        self.state = node.initial_state("a")
        self.coordinator = coordinator.initial_state(JOB)
        self.actions: list[node_messages.Action] = []
        self.events: list[JobEvent] = []
        self.told: list[cluster.Event] = []
        self.send(node_messages.JobSubmitted(of, checks, memory))

    def send(self, *events: node_messages.Event, at: float | None = None) -> OneNode:
        self.now_s = self.now_s if at is None else at
        self.actions = []
        for event in events:
            self._send(event)
        return self

    def pass_to(self, now_s: float) -> OneNode:
        """Moves the clock to that time, and fires the timer as often as needed on the way."""
        kept: list[node_messages.Action] = []
        while True:
            moments = (node.next_deadline_s(self.state), coordinator.next_deadline_s(self.coordinator))
            due_s = min((each for each in moments if each is not None), default=None)
            if due_s is None or due_s > now_s:
                self.now_s = now_s
                self.actions = kept
                return self
            self.send(node_messages.DeadlineReached(), at=max(self.now_s, due_s))
            self._coordinate(cluster.DeadlineReached())
            kept += self.actions

    def of(self, kind: type[A]) -> list[A]:
        return [action for action in self.actions if isinstance(action, kind)]

    def said(self, kind: str) -> list[str]:
        return [event.reason for event in self.events if event.kind == kind]

    def view(self) -> JobView:
        view = node.view(self.state, JOB)
        assert view is not None
        return view

    def verdict(self) -> Verdict | None:
        return self.view().verdict

    # --- the outside

    def run_cycle(self, cycle: int) -> OneNode:
        """Starts the store and all workers of the cycle; pids are 100, 101, …"""
        self.send(node_messages.StoreReady(JOB, cycle, "127.0.0.1", 30000 + cycle))
        ranks = range(self.rules.local_world_size)
        return self.send(*(node_messages.WorkerSpawned(JOB, cycle, each, 100 + each) for each in ranks))

    def exit(self, cycle: int, local_rank: int, *, code: int | None = None, signal: int | None = None) -> OneNode:
        return self.send(node_messages.WorkerExited(JOB, cycle, self.ended(local_rank, code=code, signal=signal)))

    def ended(
        self, local_rank: int, *, code: int | None = None, signal: int | None = None, error_at: float | None = None
    ) -> WorkerExit:
        error = "boom" if error_at is not None else ""
        ended = WorkerExit(local_rank, local_rank, 100 + local_rank, code, signal, self.now_s, error=error)
        return msgspec.structs.replace(ended, error_at_unix_s=error_at, error_at_s=error_at)

    def _send(self, event: node_messages.Event) -> None:
        if isinstance(event, node_messages.SpawnerReady | node_messages.SpawnerLost) and event.number == NOW:
            event = msgspec.structs.replace(event, number=self.state.jobs[JOB].job.spawners)
        self.state, actions = node.step(self.state, event, now_s=self.now_s)
        for action in actions:
            match action:
                case node_messages.TellCoordinator(report=report):
                    self.told.append(report)
                    self._coordinate(report)
                case node_messages.Publish(event=said):
                    self.events.append(said)
                case node_messages.LookAtRanks():
                    pass  # Its answer, which may be missing, changes only what people read.
                case node_messages.EndSpawner() if self.spawner_obeys:
                    self.actions.append(action)
                    self._send(node_messages.SpawnerLost(JOB, NOW, "the spawner ended because it was asked to"))
                case _:
                    self.actions.append(action)

    def _coordinate(self, report: cluster.Event) -> None:
        if job_termination.is_over(self.coordinator):
            self.coordinator = coordinator.initial_state(JOB)
        self.coordinator, actions = coordinator.step(self.coordinator, report, now_s=self.now_s, jitter=0.0)
        for action in actions:
            match action:
                case cluster.Send("a", order):
                    self._send(node_messages.Ordered(JOB, order))
                case cluster.Send():
                    raise AssertionError(f"{action} is for a node that nobody knows")
                case cluster.Publish(event=said):
                    self.events.append(said)
                case cluster.Record():
                    pass  # no other leader replaces this one
                case _:
                    pass  # nobody follows the job


def running(of: JobRules) -> OneNode:
    """Returns a job whose first cycle runs."""
    return OneNode(of).send(node_messages.SpawnerReady(JOB, NOW)).run_cycle(0)


def in_first_cycle() -> OneNode:
    return running(rules(2))


def in_back_off() -> OneNode:
    job = running(rules(1, max_restarts=99))
    for cycle in range(6):
        job.exit(cycle, 0, code=1).send(node_messages.WorkersEmptied(JOB, cycle))
        if job.actions:
            job.run_cycle(cycle + 1)
    assert job.view().state is JobState.RESTARTING
    assert job.view().reason.endswith("6 cycles in a row lived less than 5 s")
    return job


def joined(job: OneNode, *local_ranks: int, cycle: int = 0) -> OneNode:
    """Lets clients join; their last heartbeat is now."""
    progress = Progress(job.now_s, job.now_s, heartbeat_at_s=job.now_s, heartbeats=1)
    limits = job.rules.hang_limits
    return job.send(*(node_messages.ClientJoined(JOB, cycle, each, limits, progress) for each in local_ranks))


def hang(job: OneNode, *local_ranks: int, at: float, cycle: int = 0) -> OneNode:
    """Makes these ranks hang; they have been silent since they joined at 0."""
    silent = Progress(0.0, 0.0, heartbeat_at_s=0.0, heartbeats=1)
    job.send(node_messages.DeadlineReached(), at=at)
    answers = [node_messages.ProgressRead(JOB, cycle, each, silent) for each in local_ranks]
    return job.send(*answers)
