"""What does the engine need of the edges: the protocols that the wiring connects?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from holdfast_wire.spawner_link import FromSpawner
from holdfast_wire.spawner_link import Order as SpawnerOrder

from supervisor.config.job_spec import JobSpec
from supervisor.core.cluster.cluster_messages import Event as Report
from supervisor.core.cluster.cluster_messages import Reported
from supervisor.core.facts import Evidence, HangLimits, Progress
from supervisor.core.gpu_affinity import GpuPlace
from supervisor.core.gpu_memory import MemoryReport, MemoryRules
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node.node_messages import Accepted, FenceMoved, JobAbandoned, Ordered
from supervisor.core.node_check_facts import HealthFinding
from supervisor.core.orders import Order
from supervisor.core.process_facts import RankLook
from supervisor.core.session_state import JobSessions
from supervisor.core.wrapped_calls.call_messages import ToRank
from supervisor.ports.reports import JobReport, RecordedEvent


class Clock(Protocol):
    def now_s(self) -> float:
        """Returns CLOCK_MONOTONIC in seconds."""
        ...

    def boot_ns(self) -> int:
        """Returns CLOCK_BOOTTIME in ns: it also counts while the machine is suspended."""
        ...

    def unix_ns(self) -> int: ...


class Claims(Protocol):
    """Claims of job ids: one live group per job id, user and node, under any supervisor."""

    def take(self, job_id: str, *, node: str = "", meets_at: str = "") -> int:
        """Returns since when we hold it (Unix ns): the run's submission. Raises AlreadyExistsError.

        `node`, `meets_at`: this node's name in a job of several nodes, and where they meet.
        """
        ...

    def release(self, job_id: str) -> None:
        """Releases it: nothing of the job is left, as far as this supervisor knows."""
        ...


class Workers(Protocol):
    """The worker socket: which client may speak for which rank, and what the ranks have stamped."""

    def open_cycle(
        self,
        job_id: str,
        cycle: int,
        *,
        token: bytes,
        spec: JobSpec,
        limits: HangLimits,
        first_rank: int,
        is_fenced: bool,
    ) -> None:
        """Starts the workers of a cycle.

        `is_fenced`: another node may take this one's place, so the ranks' lease ends unless it is extended.
        """
        ...

    def extend_lease(self, job_id: str, until_s: float) -> None:
        """Extends the lease of the job's ranks; `until_s` on CLOCK_MONOTONIC."""
        ...

    def expect(self, job_id: str, cycle: int, local_rank: int, pid: int) -> None: ...

    def close_cycle(self, job_id: str, cycle: int) -> None: ...

    def set_limits(self, job_id: str, cycle: int, limits: HangLimits) -> None: ...

    def read_progress(self, job_id: str, cycle: int, local_rank: int) -> Progress | None: ...

    def recall(self, job_id: str, cycle: int, local_rank: int, progress: Progress) -> None:
        """Sets the progress that counts until the rank's client comes; a previous supervisor knew it."""
        ...

    def tell_ranks(self, job_id: str, cycle: int, local_ranks: Sequence[int], order: ToRank | Accepted) -> None:
        """Sends to these ranks. Never blocks; an unconnected rank gets an order when it reconnects."""
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

    def process_state(self) -> str:
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
        apart_s: float = 0.0,
        kernel_wait_s: float = 0.0,
    ) -> Evidence:
        """Returns stacks of these ranks (rank -> pid), accused ones first. `Evidence.notes` says what is missing.

        `apart_s`: at least this long between the two looks at each process.
        `kernel_wait_s`: the same if a process waits in the kernel (state D) at the first.
        """
        ...

    async def look(self, pids: Mapping[int, int], *, budget_s: float) -> tuple[RankLook, ...]:
        """Returns where all threads of these ranks (rank -> pid) are; omits ranks that could not be read in time."""
        ...

    def is_stopped(self, pid: int) -> bool:
        """Returns whether a signal has stopped the process. Never blocks."""
        ...


class NodeChecks(Protocol):
    async def run(
        self, spec: JobSpec, check: str, report: Callable[[tuple[HealthFinding, ...]], None]
    ) -> tuple[HealthFinding, ...]:
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


@runtime_checkable
class Meetings(Protocol):
    """The connections of each job to its other nodes, separate from those of other jobs."""

    async def open(self, spec: JobSpec, keep: Callable[[str], bool] | None) -> JobSpec:
        """Returns the job as this node runs it. Messages from the others wait for `begin`. Raises HoldfastError.

        Messages go out only once kept: calls `keep` with the job's id, which then reads `session_state`. It returns
        False if it does that later. None: no supervisor returns, and nothing waits.
        """
        ...

    async def reopen(self, spec: JobSpec, kept: JobSessions | None, keep: Callable[[str], bool] | None) -> None:
        """Opens a job where another supervisor stopped. If its connections can't be had, abandons it."""
        ...

    def begin(self, job_id: str) -> None:
        """Notes that the engine knows the job."""
        ...

    def session_state(self, job_id: str, *, whole: bool = True) -> JobSessions | None:
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
