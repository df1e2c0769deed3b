"""What do the machines of one job tell each other about its workers?

Orders go from the job to its worker group, reports come back; node.py carries them. They never leave the node's core.
"""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.facts import Assignment, Cause, WorkerExit


class Excuse(enum.StrEnum):
    """Whether the end of a rank that was in a wrapped call is its own failure."""

    NONE = "none"
    OPEN = "open"  # the others may go on without it; how their call ends is not known yet
    STANDS = "stands"  # they have


class Worker(msgspec.Struct, frozen=True):
    """One worker of the cycle. `signalled`: by us, so that its exit is no failure of its own."""

    local_rank: int
    rank: int
    pid: int | None = None
    exit: WorkerExit | None = None
    not_started: str = ""  # why it could not be started
    signalled: bool = False
    kill_at_s: float | None = None  # a hung rank that may ignore its termination signal until then
    killed: bool = False  # SIGKILL was sent: if it stays, it waits in the kernel, and no grace will end it
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
        """By itself, with nothing that excuses it."""
        return self.ended and not self.succeeded and not self.signalled and self.excuse is Excuse.NONE

    @property
    def is_done(self) -> bool:
        """Nothing more is expected of it for the job to succeed."""
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
    """Signal every tree, and end what is left after the grace. A later one never prolongs the grace."""

    signal: int
    grace_s: float


class KillWorkers(msgspec.Struct, frozen=True):
    """End everything now."""


class KillRanks(msgspec.Struct, frozen=True):
    """End these ranks for their hang; SIGKILL to their trees `escalation_s` later."""

    local_ranks: tuple[int, ...]
    signal: int
    escalation_s: float


class LoseWorkers(msgspec.Struct, frozen=True):
    """Their parent, the spawner, has died and they with it."""


class ExcuseRank(msgspec.Struct, frozen=True):
    """Told just before its end: that is the business of the wrapped call that it was in."""

    local_rank: int
    excuse: Excuse


class SettleExcuses(msgspec.Struct, frozen=True):
    """The call has ended. `stands`: without those that were lost in it; else their ends are failures after all."""

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
    """At most once for each cycle. `of_call`: what is told is the end of a wrapped call, not that of one worker."""

    reason: str
    of_call: bool = False


class WorkersSucceeded(msgspec.Struct, frozen=True):
    """All have exited 0, but for `lost` ranks that a call has gone on without; what they left running lives on."""

    lost: tuple[int, ...] = ()


class WorkersGone(msgspec.Struct, frozen=True):
    """Nothing of the cycle is left. `cause` is None where no worker failed by itself."""

    cause: Cause | None
    all_succeeded: bool
    stuck_pids: tuple[int, ...] = ()


class HangFound(msgspec.Struct, frozen=True):
    """A rank hangs; the fault follows once its evidence was taken. What fails meanwhile is an echo."""

    reason: str


class HangEnded(msgspec.Struct, frozen=True):
    """The rank finished after all before anything was done about it."""

    reason: str


class HangFaulted(msgspec.Struct, frozen=True):
    """The hung ranks are dead or beyond waiting for."""

    reason: str


GroupReport = WorkersRun | RankExited | WorkersFaulted | WorkersSucceeded | WorkersGone
HangReport = HangFound | HangEnded | HangFaulted
