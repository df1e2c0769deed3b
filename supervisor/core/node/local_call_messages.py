"""Which states can a node's ranks have in a wrapped call, what can happen to them, and what can be asked for?

The vocabulary of the machine node/local_call.py.
"""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.calls.words import CallRefused, CallSettings, FromRank, Interruption, Told, ToRank, Word
from supervisor.core.orders import SettleCall, TellMembers
from supervisor.core.workers import Excuse

# --- state ---------------------------------------------------------------------------------------------------------


class Place(enum.StrEnum):
    OUT = "out"  # in no call
    ENTERING = "entering"
    IN = "in"
    LEFT = "left"  # has gone by itself, its process lives
    ENDED = "ended"  # its process has ended, or is given up


class Rank(msgspec.Struct, frozen=True):
    place: Place = Place.OUT
    call: int = 0
    iteration: int = 0
    settings: CallSettings = msgspec.field(default_factory=CallSettings)
    excuse: Excuse = Excuse.NONE  # its end is the call's business, not the worker group's
    stands_in: bool = False  # a new process for a lost rank
    away_until_s: float | None = None  # not connected; lost after that


Key = str  # what is said by all: "began", "arrived 1" …


class State(msgspec.Struct, frozen=True):
    """`waiting` and `sent` are by key: words that are held back, and who has told already."""

    first_rank: int = 0
    world_size: int = 0
    ranks: tuple[Rank, ...] = ()
    is_used: bool = False  # some rank has entered a call, or may have done so on another node
    over: CallRefused | None = None  # the last call that came to nothing
    waiting: dict[Key, dict[int, Word]] = msgspec.field(default_factory=dict[Key, dict[int, Word]])
    sent: frozenset[tuple[Key, int]] = frozenset()


# --- events --------------------------------------------------------------------------------------------------------


class CycleBegun(msgspec.Struct, frozen=True):
    first_rank: int
    local_world_size: int
    world_size: int


class RankSaid(msgspec.Struct, frozen=True):
    local_rank: int
    word: FromRank


class RankFaulted(msgspec.Struct, frozen=True):
    """The supervisor has found a fault of this rank."""

    local_rank: int
    interruption: Interruption
    reason: str


class RankStarted(msgspec.Struct, frozen=True):
    local_rank: int


class RankEnded(msgspec.Struct, frozen=True):
    """Its process. `failed`: neither with code 0 nor because we ended it together with all others."""

    local_rank: int
    reason: str
    failed: bool


class ClientJoined(msgspec.Struct, frozen=True):
    local_rank: int


class ClientLeft(msgspec.Struct, frozen=True):
    local_rank: int


class WorkersEnding(msgspec.Struct, frozen=True):
    """The node ends the cycle: nothing about its calls is news any more."""


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = (
    CycleBegun | RankSaid | RankFaulted | RankStarted | RankEnded | ClientJoined | ClientLeft
    | TellMembers | SettleCall | WorkersEnding | DeadlineReached
)  # fmt: skip

# --- actions -------------------------------------------------------------------------------------------------------


class TellRanks(msgspec.Struct, frozen=True):
    local_ranks: tuple[int, ...]
    order: ToRank


class TellCoordinator(msgspec.Struct, frozen=True):
    told: tuple[Told, ...]


class WatchRank(msgspec.Struct, frozen=True):
    """It is in a call. Repeated at each iteration."""

    local_rank: int
    settings: CallSettings


class UnwatchRank(msgspec.Struct, frozen=True):
    local_rank: int


class CondemnRank(msgspec.Struct, frozen=True):
    """The others go on without it: its process must not."""

    local_rank: int


class SettleExcuses(msgspec.Struct, frozen=True):
    """Whether the ends of ranks that were lost in the call stand excused, or are failures after all."""

    stands: bool
    reason: str


Action = TellRanks | TellCoordinator | WatchRank | UnwatchRank | CondemnRank | SettleExcuses
