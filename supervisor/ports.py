"""What does the engine offer to edges, and what do edges need from each other?

Plain frozen data that API, journal, command line and report share, and the protocols that the daemon wires together.
Times that people see are Unix nanoseconds (`…_at_ns`); ages and limits are seconds, read at the time of asking.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec
from holdfast_wire.spawner_link import FromSpawner
from holdfast_wire.spawner_link import Order as SpawnerOrder

from supervisor.config.job_spec import JobSpec
from supervisor.core.calls.words import ToRank
from supervisor.core.cluster.messages import Event as Report
from supervisor.core.cluster.messages import Reported
from supervisor.core.correspondence import Correspondence
from supervisor.core.facts import Evidence, HangLimits, JobState, Progress
from supervisor.core.gpu_memory import MemoryReport, MemoryRules
from supervisor.core.gpu_places import GpuPlace
from supervisor.core.ledger import Ledger
from supervisor.core.node.messages import FenceMoved, JobAbandoned, Ordered
from supervisor.core.node_health import Finding
from supervisor.core.orders import Order
from supervisor.core.stragglers.messages import Straggler


class SectionReport(msgspec.Struct, frozen=True):
    """An open section of a rank. `limit_s` None: not limited."""

    name: str
    age_s: float
    limit_s: float | None = None


class RankReport(msgspec.Struct, frozen=True):
    """One worker as people see it. `state`: starting, running, hung, exited, failed or stopped.

    "stopped" is one that we have ended, and a living process that a signal has stopped.
    """

    rank: int
    local_rank: int
    node: str
    state: str
    pid: int | None = None
    heartbeat_age_s: float | None = None  # None: no heartbeat yet
    heartbeat_limit_s: float | None = None  # for the silence that runs now; None: none holds
    sections: tuple[SectionReport, ...] = ()
    cycle_started_at_ns: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None


class CheckReport(msgspec.Struct, frozen=True):
    """What a check of a node has found last. `verdict`: healthy, suspect, unhealthy, unanswered or skipped."""

    check: str
    verdict: str
    reason: str = ""
    took_s: float = 0.0
    subject: str = ""  # what was looked at, where the check looks at several things
    found_at_ns: int = 0


class JobNodeReport(msgspec.Struct, frozen=True):
    """A node's part in a job. `state`: ready or cordoned; in a job of several nodes as core/cluster/roster.py says."""

    name: str
    state: str
    group_rank: int | None = 0  # None: it takes part in no cycle at this moment
    reason: str = ""  # of the state
    heard_at_ns: int | None = None  # when the node was last heard, if what is shown is not of this moment
    lost_at_ns: int | None = None
    ranks: tuple[int, ...] = ()  # that it runs, or ran when it was last heard of
    log_dir: str = ""  # on that node
    checks: tuple[CheckReport, ...] = ()


class JobReport(msgspec.Struct, frozen=True):
    """One run of a job at one moment. Never holds an environment value or a token.

    Runs of one id are told apart by `submitted_at_ns`, the run's incarnation.
    """

    job_id: str
    state: JobState
    submitted_at_ns: int
    cycle: int = 0
    iteration: int = 0
    max_restarts: int = 0
    restarts_used: int = 0
    reason: str = ""  # the sentence behind the state
    nodes: tuple[JobNodeReport, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    exit_code: int | None = None  # once it has ended
    ended_at_ns: int | None = None
    log_dir: str = ""  # of this run alone
    command: tuple[str, ...] = ()  # as the user typed it, without its secrets
    supervisor_pid: int = 0
    stragglers: tuple[Straggler, ...] = ()  # the slowest first


class NodeReport(msgspec.Struct, frozen=True):
    """A node with its supervisor. `state`: ready or cordoned."""

    name: str
    state: str
    reason: str = ""
    job_ids: tuple[str, ...] = ()
    supervisor_pid: int = 0
    version: str = ""
    started_at_ns: int = 0
    checks: tuple[CheckReport, ...] = ()  # that its jobs have asked for


class CycleInfo(msgspec.Struct, frozen=True):
    """A cycle as other programs read of it in a file."""

    job_id: str  # as the scheduler calls the job
    attempt: int
    cycle: int
    started_at_ns: int
    ended_at_ns: int | None  # None: it runs
    log_path: str
    active_nodes: str
    standby_nodes: str
    active_ranks: str
    generation: int  # counts the writes of this record from 0


class RecordedEvent(msgspec.Struct, frozen=True):
    """One thing that happened to a job. `sequence` counts the job's events from 1 without gaps."""

    job_id: str
    sequence: int
    at_ns: int
    kind: str  # constant name in snake_case
    reason: str
    cycle: int = 0
    iteration: int = 0
    node: str = ""
    rank: int | None = None
    details: tuple[tuple[str, str], ...] = ()


class LogBytes(msgspec.Struct, frozen=True):
    """Some bytes of one rank's output; lines may be cut at its ends."""

    rank: int
    cycle: int
    is_stderr: bool
    output: bytes


class RendezvousWish(msgspec.Struct, frozen=True):
    """A rendezvous of torchrun's agents that a supervisor shall lead. Files are absolute paths; "": none."""

    job_id: str
    host: str
    port: int
    everywhere: bool = False  # at all addresses of the node
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""


class JobDesk(Protocol):
    """What people and programs may ask of the engine. Refusals are `HoldfastError`s."""

    async def submit(self, spec: JobSpec, environment: Mapping[str, str]) -> str:
        """Start a job and return its id."""
        ...

    def jobs(self) -> Sequence[JobReport]:
        """Live and just ended jobs of this supervisor, newest first."""
        ...

    def job(self, job_id: str) -> JobReport | None: ...

    def stop(self, job_id: str, *, reason: str, signal: int) -> None:
        """End the job. signal 0: a command's stop (SIGTERM to the ranks); else as if the launcher had got it."""
        ...

    def restart(self, job_id: str, *, reason: str) -> int:
        """Begin a new cycle; takes nothing from the budget. Returns the number of that cycle."""
        ...

    async def look(self, job_id: str) -> JobReport | None:
        """The job on all its nodes, which are asked. What a node that does not answer said last is shown."""
        ...

    async def look_at_all(self) -> Sequence[JobReport]:
        """The same for all jobs."""
        ...

    async def stacks(self, job_id: str, rank: int | None) -> Evidence:
        """Of the ranks on all its nodes."""
        ...

    def events_elsewhere(
        self, job_id: str, *, after_sequence: int, follow: bool
    ) -> AsyncGenerator[RecordedEvent] | None:
        """The whole job's events, if another node keeps them; None: this one does. Raises NoAnswerError."""
        ...

    def logs_elsewhere(
        self, job: JobReport, *, rank: int | None, cycle: int | None, tail_lines: int, follow: bool
    ) -> Mapping[str, AsyncGenerator[LogBytes]]:
        """What the job's ranks on its other nodes have printed, by node. Each raises NoAnswerError."""
        ...

    def subscribe(self, job_id: str) -> AbstractAsyncContextManager[AsyncIterator[RecordedEvent]]:
        """Events from the moment of entering; ends after the last. A slow reader may lose some: see `sequence`."""
        ...

    def node(self) -> NodeReport:
        """This node."""
        ...

    async def nodes(self) -> Sequence[NodeReport]:
        """This node, and those with which it shares a job."""
        ...

    async def lead_rendezvous(self, wish: RendezvousWish) -> bool:
        """False: the address is another node's, or somebody else leads there."""
        ...

    async def set_cordon(self, node: str, *, cordoned: bool, reason: str = "") -> NodeReport:
        """`node` "": this one. Raises NotFoundError or NoAnswerError."""
        ...


class JobHistory(Protocol):
    """What was recorded, committed or not. Calls block on a disk: never call them on the event loop."""

    def jobs(self, *, limit: int) -> Sequence[JobReport]:
        """Newest first; those that still run show their last saved state."""
        ...

    def job(self, job_id: str) -> JobReport | None: ...

    def events(self, job_id: str, *, after_sequence: int = 0, limit: int) -> Sequence[RecordedEvent]:
        """In order of sequence."""
        ...


class Clock(Protocol):
    def now_s(self) -> float:
        """CLOCK_MONOTONIC in seconds."""
        ...

    def unix_ns(self) -> int: ...


class Claims(Protocol):
    """One live group per job id, user and node, under any supervisor."""

    def take(self, job_id: str, *, has_more_nodes: bool = False) -> int:
        """Since when it is ours (Unix nanoseconds): the run's submission. Raises AlreadyExistsError."""
        ...

    def release(self, job_id: str) -> None:
        """Nothing of the job is left, as far as this supervisor knows."""
        ...


class Workers(Protocol):
    """The worker socket: who may speak for which rank, and what the ranks have stamped."""

    def open_cycle(
        self, job_id: str, cycle: int, *, token: bytes, spec: JobSpec, limits: HangLimits, first_rank: int
    ) -> None: ...

    def expect(self, job_id: str, cycle: int, local_rank: int, pid: int) -> None: ...

    def close_cycle(self, job_id: str, cycle: int) -> None: ...

    def set_limits(self, job_id: str, cycle: int, limits: HangLimits) -> None: ...

    def read_progress(self, job_id: str, cycle: int, local_rank: int) -> Progress | None: ...

    def recall(self, job_id: str, cycle: int, local_rank: int, progress: Progress) -> None:
        """What counts as the rank's progress until its client comes: another supervisor has known it."""
        ...

    def tell_ranks(self, job_id: str, cycle: int, local_ranks: Sequence[int], order: ToRank) -> None:
        """To the Wrappers of these ranks. Never blocks; who is not connected learns it when it comes back."""
        ...

    def reconnect(self, job_id: str, cycle: int) -> None:
        """Ends the ranks' connections: their clients come back and say where they stand. Training goes on."""
        ...

    async def ask_stacks(self, job_id: str, cycle: int, local_rank: int, *, timeout_s: float) -> str | None: ...


class Spawner(Protocol):
    """The link to the spawner of one job."""

    @property
    def pid(self) -> int: ...

    def send(self, message: SpawnerOrder) -> None:
        """Never blocks and never raises: a spawner that can't be told is killed, and `keep` returns why."""
        ...

    def keep(self, texts: Mapping[str, str], orders: Sequence[SpawnerOrder]) -> None:
        """Sends the orders, together with what the spawner keeps for a supervisor that comes back: both or nothing."""
        ...

    def kill(self, reason: str) -> None:
        """SIGKILL to the spawner, even a stopped one, and to everything of its job's tree. `keep` returns `reason`."""
        ...

    def whereabouts(self) -> str:
        """What it is doing at this moment, as a sentence; never blocks."""
        ...


def nobody_asks(cycle: int, local_rank: int) -> None:
    """For those to whom the spawner's own reports are enough."""


class Spawners(Protocol):
    async def keep(
        self,
        spec: JobSpec,
        environment: Mapping[str, str],
        *,
        on_started: Callable[[Spawner], None],
        on_message: Callable[[FromSpawner], None],
        on_end_seen: Callable[[int, int], None] = nobody_asks,
    ) -> str:
        """Start a spawner and serve its link until it ends; returns why it ended. Never raises.

        Returns in a bounded time after its loss and after `kill`, whatever of it can't be killed.
        `on_end_seen` (cycle, local rank): the process has ended, and the spawner did not say so in the same moment.
        """
        ...


class StackSource(Protocol):
    async def collect(
        self,
        pids: Mapping[int, int],
        *,
        ask: Callable[[int, float], Awaitable[str | None]],
        budget_s: float,
        accused: tuple[int, ...] = (),
    ) -> Evidence:
        """Of these ranks (rank -> pid), the accused ones first. Says what could not be had in `Evidence.notes`."""
        ...

    def is_stopped(self, pid: int) -> bool:
        """Whether a signal has stopped the process, now. Never blocks."""
        ...


class NodeChecks(Protocol):
    async def run(
        self, spec: JobSpec, check: str, report: Callable[[tuple[Finding, ...]], None]
    ) -> tuple[Finding, ...]:
        """One of the checks that the job asks for. It may hang: nobody waits for it beyond its plan's deadline.

        It may `report` what it has found so far: a join that is patient with it then waits no longer.
        """
        ...


class Gpus(Protocol):
    """The node's GPUs. Where there are none, asking costs nothing."""

    def are_there(self) -> bool:
        """Whether this node has a driver for GPUs. Never blocks."""
        ...

    async def warm(self) -> None:
        """Makes later questions quick. Never raises."""
        ...

    async def await_memory(self, spec: JobSpec, rules: MemoryRules, *, cgroups: Sequence[str]) -> MemoryReport:
        """Waits until the memory of the job's GPUs is free, bounded by the rules' time and a few seconds.

        Ends what is left over of the job in these cgroups, and touches nothing else. Never raises.
        """
        ...

    async def places(self, spec: JobSpec) -> tuple[tuple[GpuPlace, ...], str]:
        """Where the GPUs are that the job may use, by local rank, or why that is not known. Never raises."""
        ...


class Journal(Protocol):
    """Neither blocks nor fails: what can't be written is counted and told once."""

    def record(self, event: RecordedEvent) -> None: ...

    def save(self, report: JobReport) -> None: ...

    def uncommitted(self, job_id: str) -> Sequence[RecordedEvent]:
        """What was recorded of the job and is not on the disk yet, in order."""
        ...


Post = Callable[[Ordered | Reported | FenceMoved | JobAbandoned], None]  # hands an event to the engine


class Peers(Protocol):
    """The way between the nodes of a job and its coordinator. Neither blocks nor raises for what the other side does.

    This node is a peer as any other: what is sent to it comes back as an event.
    """

    def leads(self, job_id: str) -> bool:
        """Whether this node runs the job's coordinator."""
        ...

    def send(self, node: str, job_id: str, order: Order) -> None:
        """An order of the coordinator, to a node."""
        ...

    def report(self, job_id: str, report: Report) -> None:
        """A report of this node, to the job's coordinator."""
        ...

    def record(self, job_id: str, ledger: Ledger) -> None:
        """What a later leader has to know. Orders that are sent after it leave once it is kept."""
        ...


class Meetings(Protocol):
    """The way to the other nodes of each job of several nodes, apart from those of other jobs."""

    async def open(self, spec: JobSpec) -> JobSpec:
        """Returns the job as this node runs it. What comes from the others waits for `begin`. Raises HoldfastError."""
        ...

    async def reopen(self, spec: JobSpec, kept: Correspondence | None) -> None:
        """As `open`, to go on where another supervisor has stopped. A way that can't be had abandons the job."""
        ...

    def begin(self, job_id: str) -> None:
        """The engine knows the job."""
        ...

    def keep_by(self, keep: Callable[[str], bool]) -> None:
        """From now on, words go out once they are kept: `keep` is told of which job they are, and asks for `letters`.

        False: it does that later.
        """
        ...

    def letters(self, job_id: str) -> Correspondence | None:
        """What the next supervisor has to know of the job's words; all of that may go out from now on."""
        ...

    def close(self, job_id: str) -> None:
        """The job has ended here: what was said still goes out. Never blocks; a job that has no meeting needs none."""
        ...


class Tokens(Protocol):
    """Secrets of a job's cycles, in files that only the job's user can read."""

    def issue(self, job_id: str, cycle: int) -> tuple[bytes, Path]: ...

    def withdraw(self, job_id: str, cycle: int) -> None: ...


class JobFiles(Protocol):
    """Small files that a job writes for us."""

    async def read_iteration(self, path: str) -> int | None:
        """The training iteration in a checkpoint tracker file; None if it can't be known. Bounded in time."""
        ...
