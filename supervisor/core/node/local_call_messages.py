"""Which states can a node's ranks have in a wrapped call, what can happen to them, and what can follow?

The vocabulary of the machine node/local_call.py.
"""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.node.node_messages import RankSaid, TellCoordinator, TellRanks
from supervisor.core.orders import SettleCall, TellMembers
from supervisor.core.worker_messages import Excuse
from supervisor.core.wrapped_calls.call_messages import CallRefused, CallSettings, Interruption, Lost, Word

# --- state ---------------------------------------------------------------------------------------------------------


class Place(enum.StrEnum):
    OUT = "out"  # in no call
    ENTERING = "entering"
    IN = "in"
    LEFT = "left"  # left by itself; its process is alive
    ENDED = "ended"  # its process has ended, or is given up


class Rank(msgspec.Struct, frozen=True):
    place: Place = Place.OUT
    call: int = 0
    iteration: int = 0
    settings: CallSettings = msgspec.field(default_factory=CallSettings)
    excuse: Excuse = Excuse.NONE  # the call deals with its end, not the worker group
    stands_in: bool = False  # a new process for a lost rank
    away_until_s: float | None = None  # not connected; lost after that
    lost: Lost | None = None  # as reported, once its process has ended


Key = str  # a message that all ranks send: "began", "arrived 1" …


class State(msgspec.Struct, frozen=True):
    """The ranks' calls on this node. By key: `waiting` has held-back messages, `sent` the ranks that sent theirs."""

    first_rank: int = 0
    world_size: int = 0
    ranks: tuple[Rank, ...] = ()
    is_used: bool = False  # some rank has entered a call, or may have done so on another node
    over: CallRefused | None = None  # the last call that could not continue
    waiting: dict[Key, dict[int, Word]] = msgspec.field(default_factory=dict[Key, dict[int, Word]])
    sent: frozenset[tuple[Key, int]] = frozenset()
    release_at_s: float | None = None  # what is held back leaves then; None: nothing is


# --- events --------------------------------------------------------------------------------------------------------


class CycleBegun(msgspec.Struct, frozen=True):
    first_rank: int
    local_world_size: int
    world_size: int


class RankFaulted(msgspec.Struct, frozen=True):
    """The supervisor has found a fault of this rank."""

    local_rank: int
    interruption: Interruption
    reason: str


class RankStarted(msgspec.Struct, frozen=True):
    local_rank: int


class RankEnded(msgspec.Struct, frozen=True):
    """A rank's process has ended. `failed`: not with code 0, and not because we stopped all workers."""

    local_rank: int
    reason: str
    failed: bool


class ClientJoined(msgspec.Struct, frozen=True):
    local_rank: int


class ClientLeft(msgspec.Struct, frozen=True):
    local_rank: int


class LeaderChanged(msgspec.Struct, frozen=True):
    """The new leader knows nothing of the call. `starting`: local ranks for which a new process is on its way."""

    starting: tuple[int, ...] = ()


class WorkersEnding(msgspec.Struct, frozen=True):
    """The node is ending the cycle: its calls no longer matter."""


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = (
    CycleBegun | RankSaid | RankFaulted | RankStarted | RankEnded | ClientJoined | ClientLeft
    | LeaderChanged | TellMembers | SettleCall | WorkersEnding | DeadlineReached
)  # fmt: skip

# --- actions -------------------------------------------------------------------------------------------------------


class WatchRank(msgspec.Struct, frozen=True):
    """Watch the rank, which is in a call. Repeated at each iteration."""

    local_rank: int
    settings: CallSettings


class UnwatchRank(msgspec.Struct, frozen=True):
    local_rank: int


class CondemnRank(msgspec.Struct, frozen=True):
    """End the rank's process, because the others continue without it."""

    local_rank: int


class SettleExcuses(msgspec.Struct, frozen=True):
    """Decide whether the ends of ranks lost in the call are excused or are failures after all."""

    stands: bool
    reason: str


Action = TellRanks | TellCoordinator | WatchRank | UnwatchRank | CondemnRank | SettleExcuses
