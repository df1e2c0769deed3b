"""What does the engine offer to edges, and what do edges need from each other?

Plain frozen data that API, journal, command line and report share, and the protocols that the daemon connects. Times
for people are Unix nanoseconds (`…_at_ns`); ages and limits are seconds, read at the time of the request.
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
    """An open section of a rank. `limit_s` None: no limit."""

    name: str
    age_s: float
    limit_s: float | None = None


class RankReport(msgspec.Struct, frozen=True):
    """One worker as people see it. `state`: starting, running, hung, exited, failed or stopped."""

    rank: int
    local_rank: int
    node: str
    state: str  # "stopped": we have ended it, or a signal has stopped the live process
    pid: int | None = None
    heartbeat_age_s: float | None = None  # None: no heartbeat yet
    heartbeat_limit_s: float | None = None  # for the current silence; None: no limit
    sections: tuple[SectionReport, ...] = ()
    cycle_started_at_ns: int | None = None
    exit_code: int | None = None
    exit_signal: int | None = None


class CheckReport(msgspec.Struct, frozen=True):
    """The newest result of a node's check. `verdict`: healthy, suspect, unhealthy, unanswered or skipped."""

    check: str
    verdict: str
    reason: str = ""
    took_s: float = 0.0
    subject: str = ""  # what was checked, if the check covers several things
    found_at_ns: int = 0


class JobNodeReport(msgspec.Struct, frozen=True):
    """A node's part in a job. `state`: ready or cordoned; in a job on several nodes see core/cluster/roster.py."""

    name: str
    state: str
    group_rank: int | None = 0  # None: it is not part of a cycle now
    reason: str = ""  # of the state
    heard_at_ns: int | None = None  # when the node was last heard, if its data is not current
    lost_at_ns: int | None = None
    ranks: tuple[int, ...] = ()  # ranks that it runs, or ran when last heard
    log_dir: str = ""  # on that node
    checks: tuple[CheckReport, ...] = ()
    unreachable_pid: int | None = None  # of its spawner, if that does not answer
    unreachable_state: str = ""  # of that process, its letter in /proc/PID/stat


class JobReport(msgspec.Struct, frozen=True):
    """One run of a job at one moment. Never contains an environment value or a token."""

    job_id: str
    state: JobState
    submitted_at_ns: int  # tells runs of one id apart
    cycle: int = 0
    iteration: int = 0
    max_restarts: int = 0
    restarts_used: int = 0
    reason: str = ""  # the reason of the state, as a sentence
    nodes: tuple[JobNodeReport, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    exit_code: int | None = None  # once it has ended
    ended_at_ns: int | None = None
    log_dir: str = ""  # of this run only
    command: tuple[str, ...] = ()  # as the user typed it, without its secrets
    supervisor_pid: int = 0
    stragglers: tuple[Straggler, ...] = ()  # the slowest first


class NodeReport(msgspec.Struct, frozen=True):
    """A node with its supervisor. `state`: ready or cordoned; of another node also lost, or unknown."""

    name: str
    state: str
    reason: str = ""
    job_ids: tuple[str, ...] = ()
    supervisor_pid: int = 0
    version: str = ""
    started_at_ns: int = 0
    checks: tuple[CheckReport, ...] = ()  # those that its jobs have requested


class CycleInfo(msgspec.Struct, frozen=True):
    """A cycle as other programs read it in a file."""

    job_id: str  # the scheduler's id of the job
    attempt: int
    cycle: int
    started_at_ns: int
    ended_at_ns: int | None  # None: it is running
    log_path: str
    active_nodes: str
    standby_nodes: str
    active_ranks: str
    generation: int  # counts the writes of this record from 0


class RecordedEvent(msgspec.Struct, frozen=True):
    """One event of a job. `sequence` counts the job's events from 1 without gaps."""

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
    """Some bytes of one rank's output; they may begin or end within a line."""

    rank: int
    cycle: int
    is_stderr: bool
    output: bytes


class RendezvousWish(msgspec.Struct, frozen=True):
    """A rendezvous of torchrun's agents for a supervisor to lead. Files are absolute paths; "": none."""

    job_id: str
    host: str
    port: int
    everywhere: bool = False  # at all addresses of the node
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""


class JobDesk(Protocol):
    """The requests that people and programs may make of the engine. Refusals are `HoldfastError`s."""

    async def submit(self, spec: JobSpec, environment: Mapping[str, str]) -> str:
        """Starts a job and returns its id."""
        ...

    def jobs(self) -> Sequence[JobReport]:
        """Returns live and just ended jobs of this supervisor, newest first."""
        ...

    def job(self, job_id: str) -> JobReport | None: ...

    def stop(self, job_id: str, *, reason: str, signal: int) -> None:
        """Ends the job. signal 0: as a command does (SIGTERM to the ranks); else as if the launcher had received it."""
        ...

    def restart(self, job_id: str, *, reason: str) -> int:
        """Starts a new cycle without using the restart budget. Returns its number."""
        ...

    async def look(self, job_id: str, *, this_node: bool = False) -> JobReport | None:
        """Returns the job once it is taken over. Asks its nodes, or none (`this_node`); silent ones as last heard."""
        ...

    async def look_at_all(self) -> Sequence[JobReport]:
        """Does the same for all jobs."""
        ...

    async def stacks(self, job_id: str, rank: int | None) -> Evidence:
        """Returns the stacks of the ranks on all the job's nodes."""
        ...

    async def until_complete(self, job_id: str) -> None:
        """Waits, for a bounded time, until the other nodes of a job that has ended have told their last events."""
        ...

    def events_elsewhere(
        self, job_id: str, *, after_sequence: int, follow: bool
    ) -> AsyncGenerator[RecordedEvent] | None:
        """Yields the whole job's events if another node keeps them; None: this one does. Raises NoAnswerError."""
        ...

    def logs_elsewhere(
        self, job: JobReport, *, rank: int | None, cycle: int | None, tail_lines: int, follow: bool
    ) -> Mapping[str, AsyncGenerator[LogBytes]]:
        """Returns the output of the job's ranks on its other nodes, by node. Each source may raise NoAnswerError."""
        ...

    def subscribe(self, job_id: str) -> AbstractAsyncContextManager[AsyncIterator[RecordedEvent]]:
        """Yields events from now to the last. A slow reader may lose some: see `sequence`."""
        ...

    def node(self) -> NodeReport:
        """Returns this node."""
        ...

    async def nodes(self) -> Sequence[NodeReport]:
        """Returns this node, and those with which it shares a job."""
        ...

    async def lead_rendezvous(self, wish: RendezvousWish) -> bool:
        """Leads a rendezvous. Returns False if the address is another node's, or another process leads there."""
        ...

    async def set_cordon(self, node: str, *, cordoned: bool, reason: str = "") -> NodeReport:
        """Cordons or uncordons a node; `node` "": this one. Raises NotFoundError or NoAnswerError."""
        ...


class JobHistory(Protocol):
    """The recorded data, committed or not. Calls block on a disk: never call them on the event loop."""

    def jobs(self, *, limit: int) -> Sequence[JobReport]:
        """Returns jobs, newest first; live ones in their last saved state."""
        ...

    def job(self, job_id: str) -> JobReport | None: ...

    def events(self, job_id: str, *, after_sequence: int = 0, limit: int) -> Sequence[RecordedEvent]:
        """Returns events in the order of their sequence."""
        ...


class Clock(Protocol):
    def now_s(self) -> float:
        """Returns CLOCK_MONOTONIC in seconds."""
        ...

    def unix_ns(self) -> int: ...


class Claims(Protocol):
    """Claims of job ids: one live group per job id, user and node, under any supervisor."""

    def take(self, job_id: str, *, has_more_nodes: bool = False) -> int:
        """Returns since when we hold it (Unix ns): the run's submission. Raises AlreadyExistsError."""
        ...

    def release(self, job_id: str) -> None:
        """Releases it: nothing of the job is left, as far as this supervisor knows."""
        ...


class Workers(Protocol):
    """The worker socket: which client may speak for which rank, and what the ranks have stamped."""

    def open_cycle(
        self, job_id: str, cycle: int, *, token: bytes, spec: JobSpec, limits: HangLimits, first_rank: int
    ) -> None: ...

    def expect(self, job_id: str, cycle: int, local_rank: int, pid: int) -> None: ...

    def close_cycle(self, job_id: str, cycle: int) -> None: ...

    def set_limits(self, job_id: str, cycle: int, limits: HangLimits) -> None: ...

    def read_progress(self, job_id: str, cycle: int, local_rank: int) -> Progress | None: ...

    def recall(self, job_id: str, cycle: int, local_rank: int, progress: Progress) -> None:
        """Sets the progress that counts until the rank's client comes; a previous supervisor knew it."""
        ...

    def tell_ranks(self, job_id: str, cycle: int, local_ranks: Sequence[int], order: ToRank) -> None:
        """Sends to the Wrappers of these ranks. Never blocks; an unconnected rank gets it when it reconnects."""
        ...

    def reconnect(self, job_id: str, cycle: int) -> None:
        """Ends the ranks' connections: their clients reconnect and report their state. Training continues."""
        ...

    async def ask_stacks(self, job_id: str, cycle: int, local_rank: int, *, timeout_s: float) -> str | None: ...


class Spawner(Protocol):
    """The link to the spawner of one job."""

    @property
    def pid(self) -> int: ...

    def send(self, message: SpawnerOrder) -> None:
        """Sends an order. Never blocks, never raises: kills a spawner that can't get it; `keep` returns why."""
        ...

    def keep(self, texts: Mapping[str, str], orders: Sequence[SpawnerOrder], on_kept: Callable[[], None]) -> None:
        """Sends orders with data kept for a returning supervisor; then calls `on_kept`. An empty text removes one."""

    def kill(self, reason: str) -> None:
        """Kills the spawner, even a stopped one, and all processes of its job. `keep` returns `reason`."""
        ...

    def whereabouts(self) -> str:
        """Returns what it does at this moment, as a sentence. Never blocks."""
        ...


def nobody_asks(cycle: int, local_rank: int) -> None:
    """Does nothing, for callers that need only the spawner's own reports."""


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
        """Starts a spawner and serves its link until it ends; returns why it ended. Never raises.

        Returns in bounded time after its loss or a `kill`, even if some processes can't be killed.
        `on_end_seen` (cycle, local rank): the process has ended, and the spawner did not report it at once.
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
        """Returns stacks of these ranks (rank -> pid), accused ones first. `Evidence.notes` says what is missing."""
        ...

    def is_stopped(self, pid: int) -> bool:
        """Returns whether a signal has stopped the process. Never blocks."""
        ...


class NodeChecks(Protocol):
    async def run(
        self, spec: JobSpec, check: str, report: Callable[[tuple[Finding, ...]], None]
    ) -> tuple[Finding, ...]:
        """Runs a check that the job requests. It may hang: nobody waits for it beyond its plan's deadline.

        It may `report` partial results: a join that is patient with it then waits no longer.
        """
        ...


class Gpus(Protocol):
    """The node's GPUs. If there are none, asking costs nothing."""

    def are_there(self) -> bool:
        """Returns whether this node has a driver for GPUs. Never blocks."""
        ...

    async def warm(self) -> None:
        """Makes later questions quick. Never raises."""
        ...

    async def await_memory(self, spec: JobSpec, rules: MemoryRules, *, cgroups: Sequence[str]) -> MemoryReport:
        """Waits until the memory of the job's GPUs is free, at most the rules' time and a few seconds.

        Kills processes that the job left in these cgroups, and touches nothing else. Never raises.
        """
        ...

    async def places(self, spec: JobSpec) -> tuple[tuple[GpuPlace, ...], str]:
        """Returns the places of the job's GPUs by local rank, or why they are unknown. Never raises."""
        ...


class Journal(Protocol):
    """Records jobs. Never blocks or fails: counts what can't be written, and reports that once."""

    def record(self, event: RecordedEvent) -> None: ...

    def save(self, report: JobReport) -> None: ...

    def uncommitted(self, job_id: str) -> Sequence[RecordedEvent]:
        """Returns the job's recorded events that are not on the disk yet, in order."""
        ...


Post = Callable[[Ordered | Reported | FenceMoved | JobAbandoned], None]  # passes an event to the engine


class Peers(Protocol):
    """The connection between the nodes of a job and its coordinator. Never blocks, or raises because of the other side.

    This node is a peer like any other: a message to it comes back as an event.
    """

    def leads(self, job_id: str) -> bool:
        """Returns whether this node runs the job's coordinator."""
        ...

    def send(self, node: str, job_id: str, order: Order) -> None:
        """Sends an order of the coordinator to a node."""
        ...

    def report(self, job_id: str, report: Report) -> None:
        """Sends a report of this node to the job's coordinator."""
        ...

    def record(self, job_id: str, ledger: Ledger) -> None:
        """Records the ledger for a later leader. Orders sent after it wait until it is kept."""
        ...


class Meetings(Protocol):
    """The connections of each job to its other nodes, separate from those of other jobs."""

    async def open(self, spec: JobSpec) -> JobSpec:
        """Returns the job as this node runs it. Messages from the others wait for `begin`. Raises HoldfastError."""
        ...

    async def reopen(self, spec: JobSpec, kept: Correspondence | None) -> None:
        """Opens a job where another supervisor stopped. If its connections can't be had, abandons it."""
        ...

    def begin(self, job_id: str) -> None:
        """Notes that the engine knows the job."""
        ...

    def keep_by(self, keep: Callable[[str], bool]) -> None:
        """Lets messages go out only once kept: calls `keep` with the job's id, which then reads `letters`.

        `keep` returns False if it does that later.
        """
        ...

    def letters(self, job_id: str, *, whole: bool = True) -> Correspondence | None:
        """Returns the job's messages for the next supervisor; all of them may go out. Not `whole`: only the changes."""
        ...

    def close(self, job_id: str) -> None:
        """Ends a job's meeting, if it has one: sent messages still go out. Never blocks."""
        ...


class Tokens(Protocol):
    """The secrets of a job's cycles, in files that only the job's user can read."""

    def issue(self, job_id: str, cycle: int) -> tuple[bytes, Path]: ...

    def withdraw(self, job_id: str, cycle: int) -> None: ...


class JobFiles(Protocol):
    """Small files that a job writes for us."""

    async def read_iteration(self, path: str) -> int | None:
        """Returns the training iteration in a checkpoint tracker file; None if unknown. Bounded in time."""
        ...
