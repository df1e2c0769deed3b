"""What does the engine remember of each job besides the machines' state: its specification, processes and history?

The machines decide from events alone. Names, pids, wall-clock times and sequence numbers, which only people and edges
need, are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from supervisor.config import job_logs
from supervisor.config.job_spec import JobSpec
from supervisor.config.redaction import redacted_text, secret_values
from supervisor.config.truncation import shown_command
from supervisor.core.facts import Assignment, JobEvent, Verdict
from supervisor.core.gpu_affinity import GpuPlace
from supervisor.ports.edges import Spawner
from supervisor.ports.reports import RankReport, RecordedEvent

# Once per cycle. A supervisor that decides it again may word it differently, since ended processes give no stacks.
DECIDED_ONCE = frozenset({"restart_decided"})
NS_PER_MS = 1_000_000
ENDED_JOBS_MAX = 64  # ended jobs that stay in memory; the journal has all of them


class CycleRecord(msgspec.Struct, frozen=True):
    """How the workers of the running cycle were started: a replaced rank gets the same."""

    assignment: Assignment
    started_at_ns: int
    token_path: str
    store_host: str
    store_port: int
    respawns: int = 0
    token: bytes = b""  # the secret of the cycle; never shown


class RecordedCycle(msgspec.Struct):
    """The leader's record of the newest cycle for other programs (cycle_records.py)."""

    number: int
    started_at_ns: int
    nodes_max: int
    parts: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict[str, tuple[int, ...]])  # node -> its ranks
    standby: tuple[str, ...] = ()
    generation: int = -1  # of the record as written
    ended_at_ns: int | None = None


class Shown(msgspec.Struct, frozen=True):
    """What people may still see of a job that this node has led, whose coordinator is gone."""

    restarts_used: int = 0
    iteration: int = 0  # of the wrapped call
    ranks: tuple[RankReport, ...] = ()  # not used: an earlier version kept them


class JobRecord(msgspec.Struct):
    """One run of a job of this supervisor. Only the engine writes it; everyone else reads it."""

    spec: JobSpec
    environment: Mapping[str, str]
    submitted_at_ns: int
    log_dir: str  # of this run only
    shown_command: tuple[str, ...] = ()  # without its secrets
    secrets: tuple[str, ...] = ()  # those of its command and its environment, which no text may show
    spawner: Spawner | None = None
    spawner_number: int = 0  # of the newest spawner, which may still be starting
    spawner_doom: str = ""  # why to kill the newest spawner, if that was decided before it was there
    fence_until_s: float | None = None  # as moved last, for a spawner that is there later; None: never
    spawner_reason: str = ""  # how workers are started and why
    slower_told: bool = False  # whether people already know that something is slower than it could be
    running: CycleRecord | None = None  # the newest cycle whose workers were ordered here
    gpu_places: tuple[GpuPlace, ...] = ()  # of the GPUs that the job may use, if its workers are to be bound
    is_returning: bool = False  # its spawner, started by a previous supervisor, is still being contacted
    cgroups: set[str] = msgspec.field(default_factory=set[str])  # folders of its spawners, which contain the workers
    pids: dict[int, int] = msgspec.field(default_factory=dict[int, int])  # local rank -> pid, in that cycle
    shown: Shown = Shown()
    sequence: int = 0
    verdict: Verdict | None = None
    ended_at_ns: int | None = None
    stop_reason: str = ""  # from the first request to stop
    recorded_cycle: RecordedCycle | None = None
    # By node and its own submission: all its events up to this one are in the history of the whole job.
    taken: dict[tuple[str, int], int] = msgspec.field(default_factory=dict[tuple[str, int], int])
    taken_anew: dict[tuple[str, int], None] = msgspec.field(default_factory=dict[tuple[str, int], None])  # not kept yet
    # Events that the previous supervisor may have recorded last: they are not recorded twice.
    recorded_before: list[RecordedEvent] = msgspec.field(default_factory=list[RecordedEvent])

    def __post_init__(self) -> None:
        self.shown_command = shown_command(self.spec.command)
        self.secrets = secret_values(self.spec.command, self.environment)

    @property
    def submitted_at_ms(self) -> int:
        """Returns what the job's nodes say about it (NodeFacts)."""
        return self.submitted_at_ns // NS_PER_MS

    def node_name(self, own: str) -> str:
        """Returns the job's name for this node, which its supervisor calls `own`."""
        return self.spec.nodes.name if self.spec.nodes is not None else own

    @property
    def cycle_info_stem(self) -> str:
        """Returns how the names of the records of its cycles begin."""
        nodes_min = self.spec.nodes.min_nodes if self.spec.nodes is not None else 1
        return job_logs.cycle_info_stem(self.environment, self.spec.job_id, nodes_min)

    @property
    def is_kept(self) -> bool:
        """Returns whether a spawner keeps the job for a later supervisor, or will in a moment."""
        has_spawner = self.spawner is not None or self.is_returning
        return self.spec.may_come_back and self.verdict is None and has_spawner

    def redacted(self, text: str) -> str:
        """Returns a text about the job without the job's secrets: an exception may quote them."""
        return redacted_text(text, self.secrets)

    def record(self, event: JobEvent, *, node: str, at_ns: int) -> RecordedEvent:
        """Returns the event with its place in the job's history."""
        self.sequence += 1
        return RecordedEvent(
            job_id=self.spec.job_id,
            sequence=self.sequence,
            at_ns=at_ns,
            kind=event.kind,
            reason=self.redacted(event.reason),
            cycle=event.cycle,
            iteration=event.iteration,
            node=node,
            rank=event.rank,
            details=tuple((key, self.redacted(value)) for key, value in event.details),
        )

    def show(self, *, restarts_used: int, iteration: int) -> None:
        """Notes what the job's coordinator counts."""
        if self.shown.restarts_used != restarts_used or self.shown.iteration != iteration:
            self.shown = Shown(restarts_used, iteration)

    def end(self, at_ns: int) -> None:
        """Notes that nothing of the job is left. No spawner will need the values of its environment."""
        self.ended_at_ns = at_ns
        self.environment = {}

    def begin_spawner(self, number: int) -> None:
        self.spawner = None
        self.spawner_number = number
        self.spawner_doom = ""

    def was_recorded(self, event: JobEvent, *, node: str) -> bool:
        """Returns whether the previous supervisor recorded this event, which the same cause has repeated."""
        what, reason = (event.kind, event.cycle, event.rank, node), self.redacted(event.reason)
        return self._forget_recorded(
            lambda known: (
                (known.kind, known.cycle, known.rank, known.node) == what
                and (known.reason == reason or event.kind in DECIDED_ONCE)
            )
        )

    def was_taken_in(self, event: RecordedEvent) -> bool:
        """Returns the same for an event that another node has sent again."""
        what = (event.node, event.at_ns, event.kind, event.reason)
        return self._forget_recorded(lambda known: (known.node, known.at_ns, known.kind, known.reason) == what)

    def _forget_recorded(self, is_it: Callable[[RecordedEvent], bool]) -> bool:
        known = next(filter(is_it, self.recorded_before), None)
        if known is not None:
            self.recorded_before.remove(known)
        return known is not None

    def take(self, life: tuple[str, int], through_sequence: int) -> None:
        """Notes that the events of a node's life are here, up to this one."""
        if self.taken.get(life) != through_sequence:
            self.taken[life] = through_sequence
            self.taken_anew[life] = None

    @property
    def cycle(self) -> int:
        """Returns the cycle of the newest workers; 0 before the first."""
        return self.running.assignment.cycle if self.running is not None else 0

    @property
    def first_rank(self) -> int:
        return self.running.assignment.first_rank if self.running is not None else 0

    def begin_cycle(self, running: CycleRecord) -> None:
        self.running = running
        self.pids = {}

    def runs(self, cycle: int) -> bool:
        """Returns whether the newest workers are those of this cycle."""
        return self.running is not None and self.running.assignment.cycle == cycle
