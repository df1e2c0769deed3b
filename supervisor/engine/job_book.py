"""What the engine remembers of each job beside the machines' state: its specification, its processes, its history.

The machines decide from events alone; names, pids, wall-clock times and sequence numbers, which only people and edges
need, stand here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import anyio
import msgspec

from supervisor.config.job_spec import JobSpec
from supervisor.config.redaction import redacted
from supervisor.core.cluster import messages as cluster_messages
from supervisor.core.facts import Assignment, JobEvent, Verdict
from supervisor.core.node.messages import StoreFailed, StoreReady
from supervisor.ports import RankReport, RecordedEvent, Spawner

ENDED_JOBS_MAX = 64  # ended jobs that stay in memory; the journal has all


class JobRecord(msgspec.Struct):
    """One job of this supervisor. Only the engine's loop writes it."""

    spec: JobSpec
    environment: Mapping[str, str]
    submitted_at_ns: int
    log_dir: str  # of this run alone
    shown_command: tuple[str, ...] = ()  # without its secrets
    spawner: Spawner | None = None
    spawner_reason: str = ""  # how workers are started and why
    spawner_gone: anyio.Event = msgspec.field(default_factory=anyio.Event)  # its process has ended
    spawner_ending: bool = False  # it was told to end: its end is no loss
    pids: dict[int, int] = msgspec.field(default_factory=dict[int, int])  # local rank -> pid, of `pids_cycle`
    pids_cycle: int = -1
    cycle_started_at_ns: int | None = None
    cycle_started_at_s: float = 0.0
    error_files: dict[int, str] = msgspec.field(default_factory=dict[int, str])
    unsent_reports: deque[cluster_messages.Event] = msgspec.field(default_factory=deque[cluster_messages.Event])
    store_asked: int = -1  # the newest cycle for which the spawner was asked for a store
    store_wanted: int = -1  # the newest for which the core has asked
    store_answer: StoreReady | StoreFailed | None = None  # came before the core asked
    sequence: int = 0
    cycle: int = 0
    assignment: Assignment | None = None  # of the running cycle, its store and token: for ranks that are replaced
    store: tuple[str, int] = ("", 0)
    token_path: str = ""
    respawns: int = 0  # of the cycle
    iteration: int = 0  # of the wrapped call
    first_rank: int = 0
    restarts_used: int = 0
    last_ranks: tuple[RankReport, ...] = ()  # as last seen; what remains to be shown of an ended job
    verdict: Verdict | None = None
    ended_at_ns: int | None = None
    stop_reason: str = ""  # of the first request to stop

    def __post_init__(self) -> None:
        self.shown_command = redacted(self.spec.command)

    def record(self, event: JobEvent, *, node: str, at_ns: int) -> RecordedEvent:
        """The event with its place in the job's history."""
        self.sequence += 1
        return RecordedEvent(
            job_id=self.spec.job_id,
            sequence=self.sequence,
            at_ns=at_ns,
            kind=event.kind,
            reason=event.reason,
            cycle=event.cycle,
            iteration=event.iteration,
            node=node,
            rank=event.rank,
            details=event.details,
        )

    def forget_environment(self) -> None:
        """Environment values are needed while a spawner may have to be started again, no longer."""
        self.environment = {}

    def begin_cycle(self, assignment: Assignment, *, at_ns: int, at_s: float) -> None:
        self.cycle = assignment.cycle
        self.assignment = assignment
        self.respawns = 0
        self.iteration = 0
        self.first_rank = assignment.first_rank
        self.pids = {}
        self.pids_cycle = assignment.cycle
        self.cycle_started_at_ns = at_ns
        self.cycle_started_at_s = at_s
        self.error_files = {}
