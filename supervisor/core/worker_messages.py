"""What do the machines of one job tell each other about its workers?

The job sends orders to its worker group, which sends reports back; node.py carries both. They never leave the core.
"""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.facts import Assignment, Cause, WorkerExit
from supervisor.core.stop_verdict import STOP_FOLLOWS_S


class Excuse(enum.StrEnum):
    """Whether the end of a rank that was in a wrapped call is its own failure."""

    NONE = "none"
    OPEN = "open"  # the others may continue without it; their call has not ended yet
    STANDS = "stands"  # the others have succeeded without it


class Worker(msgspec.Struct, frozen=True):
    """A worker of the cycle. `signalled`: by us, so its exit is not a failure of its own."""

    local_rank: int
    rank: int
    pid: int | None = None
    exit: WorkerExit | None = None
    not_started: str = ""  # why it could not be started
    signalled: bool = False
    kill_at_s: float | None = None  # until then, a hung rank may ignore its termination signal
    killed: bool = False  # SIGKILL was sent: a process that remains is stuck in the kernel
    excuse: Excuse = Excuse.NONE

    @property
    def ended(self) -> bool:
        return self.exit is not None or bool(self.not_started)

    @property
    def beyond_waiting(self) -> bool:
        return self.ended or self.killed

    @property
    def succeeded(self) -> bool:
        return self.exit is not None and self.exit.succeeded

    @property
    def failed(self) -> bool:
        """Whether it failed by itself, without an excuse."""
        return self.ended and not self.succeeded and not self.signalled and self.excuse is Excuse.NONE

    @property
    def is_done(self) -> bool:
        """Whether the job's success needs nothing more from it."""
        if self.excuse is not Excuse.NONE:
            return self.ended and self.excuse is Excuse.STANDS
        return self.succeeded and not self.signalled


# --- orders --------------------------------------------------------------------------------------------------------


class PrepareWorkers(msgspec.Struct, frozen=True):
    """A cycle begins; its store is being made."""

    cycle: int


class StartWorkers(msgspec.Struct, frozen=True):
    assignment: Assignment
    store_host: str
    store_port: int


class StopWorkers(msgspec.Struct, frozen=True):
    """Signal every process tree, and kill what is left after the grace period. A later order never prolongs that.

    There is one exception: a signal to a launcher that comes so soon that the scheduler's end of the job was the fault.
    """

    signal: int
    grace_s: float
    for_restart: bool = False  # report workers that linger
    by_signal: bool = False  # to a launcher, which stops the job

    def kill_at_s(self, now_s: float, *, first_at_s: float, before_s: float) -> float:
        """Returns when what is left is killed, if earlier orders, the first at `first_at_s`, have said `before_s`."""
        own_s = now_s + self.grace_s
        is_cause = self.by_signal and now_s - first_at_s < STOP_FOLLOWS_S
        return own_s if is_cause else min(own_s, before_s)


class KillWorkers(msgspec.Struct, frozen=True):
    """Kill everything now."""


class KillRanks(msgspec.Struct, frozen=True):
    """Terminate these hung ranks; SIGKILL their process trees `escalation_s` later."""

    local_ranks: tuple[int, ...]
    signal: int
    escalation_s: float


class LoseWorkers(msgspec.Struct, frozen=True):
    """The spawner, their parent, has died, and they with it."""


class ExcuseRank(msgspec.Struct, frozen=True):
    """Sent just before a rank's end is reported: the wrapped call that it was in deals with that end."""

    local_rank: int
    excuse: Excuse


class SettleExcuses(msgspec.Struct, frozen=True):
    """The call has ended. `stands`: it succeeded without its lost ranks; else their ends are failures."""

    stands: bool
    reason: str


class RespawnRanks(msgspec.Struct, frozen=True):
    """Start new processes for ranks that were lost in a wrapped call."""

    local_ranks: tuple[int, ...]


Order = (
    PrepareWorkers | StartWorkers | StopWorkers | KillWorkers | KillRanks | LoseWorkers | ExcuseRank | SettleExcuses
    | RespawnRanks
)  # fmt: skip

# --- reports -------------------------------------------------------------------------------------------------------


class WorkersRun(msgspec.Struct, frozen=True):
    """Every worker has been started."""


class RankExited(msgspec.Struct, frozen=True):
    exit: WorkerExit


class WorkersFaulted(msgspec.Struct, frozen=True):
    """Workers have failed; reported at most once in a cycle. `of_call`: a wrapped call ended, not just one worker."""

    reason: str
    of_call: bool = False
    may_be_stop: bool = False  # see NodeFailed


class WorkersSucceeded(msgspec.Struct, frozen=True):
    """All have exited 0, except for `lost` ranks that a call continued without; what those left running lives on."""

    lost: tuple[int, ...] = ()


class WorkersLinger(msgspec.Struct, frozen=True):
    """Workers have not ended by the signal of a restart."""


class WorkersGone(msgspec.Struct, frozen=True):
    """Nothing of the cycle is left. `cause` is None where no worker failed by itself."""

    cause: Cause | None
    all_succeeded: bool
    stuck_pids: tuple[int, ...] = ()


class HangFound(msgspec.Struct, frozen=True):
    """A rank hangs; the fault follows once the evidence is collected. Failures meanwhile are its consequences."""

    reason: str


class HangEnded(msgspec.Struct, frozen=True):
    """The rank exited 0 before anything was done about its hang."""

    reason: str


class HangFaulted(msgspec.Struct, frozen=True):
    """The hung ranks are dead, or waiting for them is useless."""

    reason: str


GroupReport = WorkersRun | RankExited | WorkersFaulted | WorkersSucceeded | WorkersLinger | WorkersGone
HangReport = HangFound | HangEnded | HangFaulted
