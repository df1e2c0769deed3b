"""Jobs for reports: small ones, event by event, and one with thousands of random ranks."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec

from supervisor.core.facts import JobState
from supervisor.ports.reports import JobNodeReport, JobReport, RecordedEvent

BEGAN_NS = 1_795_000_000 * 10**9
NODE = "vm"


class Told:
    """Emits a job's events in order; moments are seconds after the job's submission."""

    def __init__(self, job_id: str = "job", *, max_restarts: int = 5) -> None:
        self.job_id = job_id
        self.max_restarts = max_restarts
        self.events: list[RecordedEvent] = []
        self.units = 0

    def say(
        self,
        at_s: float,
        kind: str,
        reason: str = "",
        *,
        cycle: int = 0,
        rank: int | None = None,
        node: str = NODE,
        iteration: int = 0,
        details: Iterable[tuple[str, str]] = (),
    ) -> None:
        at_ns = BEGAN_NS + round(at_s * 1e9)
        self.events.append(
            RecordedEvent(
                self.job_id, len(self.events) + 1, at_ns, kind, reason or f"{kind} happened", cycle, iteration, node,
                rank, tuple(details),
            )
        )  # fmt: skip

    def begin(self, at_s: float, *, cycle: int, ranks: Iterable[int], node: str = NODE) -> None:
        """Starts a cycle on a node; all its ranks have started 0.1 s later."""
        self.say(at_s, "cycle_started", f"cycle {cycle} starts", cycle=cycle, node=node)
        for rank in ranks:
            self.say(at_s + 0.05, "worker_started", f"rank {rank} (pid {rank + 100}) started",
                     cycle=cycle, rank=rank, node=node)  # fmt: skip
        self.say(at_s + 0.1, "workers_started", f"all workers of cycle {cycle} have started", cycle=cycle, node=node)

    def stop(self, at_s: float, *, cycle: int, ranks: Iterable[int], node: str = NODE, code_0: bool = False) -> None:
        """Stops the workers of a node: all are gone 0.2 s later."""
        self.say(at_s, "workers_stopping", "the workers are being stopped", cycle=cycle, node=node)
        end = "exited with code 0" if code_0 else "was killed by SIGTERM"
        for rank in ranks:
            self.say(
                at_s + 0.1, "worker_exited", f"rank {rank} (pid {rank + 100}) {end}", cycle=cycle, rank=rank, node=node
            )
        self.say(at_s + 0.2, "workers_stopped", f"nothing of cycle {cycle} is left on {node}", cycle=cycle, node=node)

    def decide(self, at_s: float, cause: str, *, cycle: int) -> None:
        self.units += 1
        text = f"{cause}; restarting at once, restarts used {self.units} of {self.max_restarts}"
        self.say(at_s, "restart_decided", text, cycle=cycle)

    def report(
        self, state: JobState = JobState.SUCCEEDED, *, nodes: Iterable[str] = (NODE,), **more: object
    ) -> JobReport:
        """Returns the report. `more`: its other fields."""
        last_ns = max((event.at_ns for event in self.events), default=BEGAN_NS)
        made = JobReport(
            self.job_id,
            state,
            BEGAN_NS,
            max_restarts=self.max_restarts,
            restarts_used=self.units,
            ended_at_ns=last_ns if state.has_ended else None,
            exit_code={JobState.SUCCEEDED: 0, JobState.FAILED: 1}.get(state),
            reason="all ranks exited with code 0" if state is JobState.SUCCEEDED else "as told",
            nodes=tuple(JobNodeReport(name, "ready") for name in nodes),
            command=("train.py", "--steps", "40"),
        )
        return msgspec.structs.replace(made, **more)


STACKS = (
    ("ranks 0, 1", "<module> (train.py:9)\nbackward (graph.py:979)"),
    ("ranks 2", "<module> (train.py:9)\nhang (train.py:118)"),
    ("source", "py-spy"),
    ("took_s", "0.060"),
)


def killed_and_hung() -> Told:
    """Three ranks: rank 1 is killed at 10 s, rank 2 hangs from 18 s on and is noticed at 20 s; the job ends at 30 s."""
    told = Told()
    told.say(0, "job_submitted")
    told.begin(2, cycle=0, ranks=range(3))
    told.say(10, "worker_failed", "rank 1 (pid 101) was killed by SIGKILL", rank=1)
    told.decide(10, "rank 1 (pid 101) was killed by SIGKILL", cycle=0)
    told.stop(10.1, cycle=0, ranks=(0, 2))
    told.begin(10.5, cycle=1, ranks=range(3))
    told.say(10.6, "running_again", cycle=1)
    told.say(20, "hang_detected", "rank 2 has been in section 'batch' for 2.0 s (limit 2.0 s)", cycle=1, rank=2)
    told.say(20.1, "stacks_collected", "rank 2 stands in hang", cycle=1, details=STACKS)
    cause = "rank 2 is in hang (train.py:118) while ranks 0 and 1 wait in backward"
    told.say(20.1, "hang_explained", cause, cycle=1, rank=2, details=[("culprits", "2"), ("waiters", "0, 1")])
    told.decide(20.2, cause, cycle=1)
    told.stop(20.2, cycle=1, ranks=range(3))
    told.begin(20.6, cycle=2, ranks=range(3))
    told.say(20.7, "running_again", cycle=2)
    told.stop(29.5, cycle=2, ranks=range(3), code_0=True)
    told.say(30, "job_succeeded", "all ranks exited with code 0", cycle=2)
    return told


def large(*, nodes: int = 1000, ranks_per_node: int = 8, cycles: int = 12, seed: int = 1) -> Told:
    """A job with thousands of ranks over days; each cycle ends with a fault on a random node."""
    chance = random.Random(seed)
    told = Told("large", max_restarts=50)
    told.say(0, "job_submitted")
    at_s = 40.0
    names = [f"node{number:04}" for number in range(nodes)]
    for cycle in range(cycles):
        for place, name in enumerate(names):
            told.begin(at_s + chance.random(), cycle=cycle, ranks=_ranks(place, ranks_per_node), node=name)
        at_s += chance.expovariate(1 / 14_400) + 600
        if cycle == cycles - 1:
            for place, name in enumerate(names):
                told.stop(at_s, cycle=cycle, ranks=_ranks(place, ranks_per_node), node=name, code_0=True)
            break
        place = chance.randrange(nodes)
        rank, name = place * ranks_per_node + chance.randrange(ranks_per_node), names[place]
        cause = _fault(told, at_s, cycle, rank, name, chance)
        told.decide(at_s + 0.3, cause, cycle=cycle)
        for other, each in enumerate(names):
            alive = [one for one in _ranks(other, ranks_per_node) if one != rank or "killed" not in cause]
            if f"node {each} is lost" not in cause:
                told.stop(at_s + 0.3 + chance.random() / 5, cycle=cycle, ranks=alive, node=each)
        at_s += 3.0
    told.say(at_s + 1, "job_succeeded", "all ranks exited with code 0", cycle=cycles - 1)
    return told


def _ranks(place: int, ranks_per_node: int) -> range:
    return range(place * ranks_per_node, (place + 1) * ranks_per_node)


def _fault(told: Told, at_s: float, cycle: int, rank: int, node: str, chance: random.Random) -> str:
    kind = chance.choice(("killed", "killed", "hang", "node"))
    if kind == "killed":
        cause = f"rank {rank} (pid {rank + 100}) was killed by SIGKILL"
        told.say(at_s, "worker_failed", cause, cycle=cycle, rank=rank, node=node)
        return cause
    if kind == "node":
        cause = f"node {node} is lost: nothing was heard for 5 s"
        told.say(at_s, "node_lost", cause, cycle=cycle)
        return cause
    noticed = f"rank {rank} has been silent for 2700.0 s (limit 2700.0 s)"
    told.say(at_s, "hang_detected", noticed, cycle=cycle, rank=rank, node=node)
    cause = f"rank {rank} is in all_reduce (train.py:40) while the others wait"
    told.say(at_s + 0.2, "stacks_collected", "", cycle=cycle, node=node, details=_many_stacks(rank))
    told.say(at_s + 0.2, "hang_explained", cause, cycle=cycle, rank=rank, node=node, details=[("culprits", str(rank))])
    return cause


def _many_stacks(rank: int) -> list[tuple[str, str]]:
    others = ", ".join(str(each) for each in range(8000) if each != rank)
    return [
        (f"ranks {rank}", "<module> (train.py:9)\nall_reduce (train.py:40)"),
        (f"ranks {others}", "<module> (train.py:9)\nbackward (graph.py:979)"),
        ("source", "py-spy"),
    ]
