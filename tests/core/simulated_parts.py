"""What a simulated job is made of: how likely faults are, its workers, and what the checkers look at."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from supervisor.core.facts import JobEvent, Progress, Verdict
from supervisor.core.node import messages

HEARTBEAT_S = 1.0


@dataclass
class Odds:
    """How likely each fault is, of the thing that it strikes; times are drawn from the seed."""

    spawner_fails: float = 0.05
    spawner_dies: float = 0.1
    store_fails: float = 0.05
    store_dies: float = 0.05
    spawn_fails: float = 0.03
    crashes: float = 0.2
    hangs: float = 0.15
    ignores_term: float = 0.2
    stuck: float = 0.03
    no_evidence: float = 0.2
    stop: float = 0.1
    restart: float = 0.1
    control: float = 0.1
    early_timer: float = 0.3
    late_reports: float = 0.3  # of runs, in which reports with an iteration take their time, and those behind them too
    slow_answers: float = 0.3  # of runs, in which the spawner's answers take up to 2 s, each for itself
    silent: float = 0.1  # of spawners, that stop answering at some moment
    wakes: float = 0.5  # of those, that go on after a while
    unkillable: float = 0.2  # of those that are killed while they are silent (state D)
    hang_ends: float = 0.3  # of hung ranks, that exit with 0 at some moment


QUIET = Odds(*([0.0] * len(dataclasses.fields(Odds))))


@dataclass
class SimulatedWorker:
    cycle: int
    local_rank: int
    pid: int
    started_at_s: float
    alive: bool = True
    client: bool = False
    silent_from_s: float | None = None
    ignores_term: bool = False
    stuck: bool = False
    exit_code: int | None = None

    def progress(self, now_s: float) -> Progress:
        last_s = now_s if self.silent_from_s is None else min(now_s, self.silent_from_s)
        beats = int((last_s - self.started_at_s) / HEARTBEAT_S)
        return Progress(
            initialised_at_s=self.started_at_s,
            out_of_section_since_s=self.started_at_s,
            heartbeat_at_s=self.started_at_s + beats * HEARTBEAT_S if beats else None,
            heartbeats=beats,
            read_at_s=now_s,
        )


@dataclass
class Record:
    """What the checkers look at."""

    published: list[tuple[float, JobEvent]] = field(default_factory=list[tuple[float, JobEvent]])
    spawned_cycles: list[int] = field(default_factory=list[int])
    signals: list[tuple[float, messages.SignalWorkers | messages.KillTree]] = field(
        default_factory=list[tuple[float, messages.SignalWorkers | messages.KillTree]]
    )
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    faults: list[str] = field(default_factory=list[str])
    wishes: list[str] = field(default_factory=list[str])
    complaints: list[str] = field(default_factory=list[str])
