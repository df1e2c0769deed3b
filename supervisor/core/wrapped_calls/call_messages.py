"""What do ranks, nodes and the coordinator say to each other about a call of a function under the in-process Wrapper?

All ranks of a cycle make the same calls in the same order; a call is counted from 1, its iterations from 0. A rank is
known by its number in the cycle ("member"); its current number changes with each iteration.
"""

from __future__ import annotations

import enum

import msgspec

EXCHANGE_NAMES_MAX = 128  # in the rank assignment of one iteration; the same number as on the wire
EXCHANGE_NAMES_OPEN_MAX = 16  # those for which some rank has given no value yet


class Stage(enum.IntEnum):
    """Where a rank is when it enters, or returns after a lost connection."""

    ENTERING = 0
    RUNNING = 1
    COMPLETING = 2
    UNWINDING = 3
    RESTARTING = 4


class Interruption(enum.IntEnum):
    EXCEPTION = 0
    BASE_EXCEPTION = 1
    SOFT_TIMEOUT = 2
    HARD_TIMEOUT = 3
    TERMINATED = 4
    UNRESPONSIVE = 5
    MONITOR_PROCESS_EXCEPTION = 6


class Barrier(enum.IntEnum):
    COMPLETION = 0
    ITERATION = 1


class Leaving(enum.IntEnum):
    DONE = 0  # after the commit
    FAULT = 1
    DISCARDED = 2  # rank assignment dropped it, as every rank knows


class CallSettings(msgspec.Struct, frozen=True):
    last_call_wait_s: float = 1.0
    soft_timeout_s: float = 60.0
    hard_timeout_s: float = 90.0
    termination_grace_s: float = 5.0
    barrier_timeout_s: float = 120.0
    heartbeat_timeout_s: float = 30.0  # silence after which an unreachable rank is lost


# --- from a rank ---------------------------------------------------------------------------------------------------


class CallEnter(msgspec.Struct, frozen=True):
    call: int
    initial_rank: int
    initial_world_size: int
    settings: CallSettings
    stage: Stage = Stage.ENTERING
    iteration: int = 0
    rank: int = 0
    world_size: int = 0
    active: bool = False
    overdue: bool = False  # repeated as its wait ends: asks for RanksMissing


class IterationBegan(msgspec.Struct, frozen=True):
    """Rank assignment is done. `active_rank` None: a reserve."""

    call: int
    iteration: int
    rank: int
    world_size: int
    active_rank: int | None
    active_world_size: int


class RankFault(msgspec.Struct, frozen=True):
    """A fault of the rank. `rank` -1: reported by the supervisor, which knows only the member."""

    call: int
    iteration: int
    rank: int
    interruption: Interruption
    reason: str


class FaultsReported(msgspec.Struct, frozen=True):
    """The answer to Interrupt: the rank has reported its fault, or has none."""

    call: int
    iteration: int


class BarrierArrive(msgspec.Struct, frozen=True):
    call: int
    iteration: int
    barrier: Barrier
    rank: int
    active: bool
    overdue: bool = False  # as in CallEnter


class CallLeave(msgspec.Struct, frozen=True):
    """The rank leaves. `unfit`: a health check rejected it; its process ends with an error and may be replaced."""

    call: int
    iteration: int
    why: Leaving
    reason: str
    unfit: bool = False


class ExchangeValue(msgspec.Struct, frozen=True):
    """A value under a name, for all ranks that take part in the assignment of this iteration."""

    call: int
    iteration: int
    name: str
    rank: int
    value: str
    overdue: bool = False  # as in CallEnter


FromRank = CallEnter | IterationBegan | RankFault | FaultsReported | BarrierArrive | CallLeave | ExchangeValue

# --- of a rank, by its node ----------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    """A process was started for the rank."""


class Lost(msgspec.Struct, frozen=True):
    """The rank's process has ended or can't be reached. `failed`: not on purpose, so a new one may replace it."""

    interruption: Interruption
    reason: str
    failed: bool
    in_call: int = 0  # which had begun; 0: in none, or unknown


Word = FromRank | Started | Lost


class Told(msgspec.Struct, frozen=True):
    member: int
    word: Word


# --- to a rank -----------------------------------------------------------------------------------------------------


class FaultRecord(msgspec.Struct, frozen=True):
    rank: int
    interruption: Interruption
    reason: str


class BeginIteration(msgspec.Struct, frozen=True):
    """The one decision for an iteration. Numbers are those of the iteration that has ended.

    `anew`: new processes join. Numbers are the initial ones, and rank assignment starts over on all ranks, so no rank
    needs to know earlier decisions.
    """

    call: int
    iteration: int
    world_size: int
    terminated_ranks: tuple[int, ...] = ()
    anew: bool = False


class Exchanged(msgspec.Struct, frozen=True):
    call: int
    iteration: int
    name: str
    values: tuple[tuple[int, str], ...]


class Entered(msgspec.Struct, frozen=True):
    """All ranks have entered. `history` and `exchanges`: for a rank that joins late, or that knows of lost ranks."""

    call: int
    iteration: int = 0
    history: tuple[BeginIteration, ...] = ()
    exchanges: tuple[Exchanged, ...] = ()


class CallUnderway(msgspec.Struct, frozen=True):
    """The call continues without this rank, which joins the next iteration, however long that takes."""

    call: int


class RanksMissing(msgspec.Struct, frozen=True):
    """Answers an overdue message. `ranks`: the first of the `total` members that have not sent theirs."""

    call: int
    ranks: tuple[int, ...]
    total: int


class Interrupt(msgspec.Struct, frozen=True):
    call: int
    iteration: int


class Restart(msgspec.Struct, frozen=True):
    call: int
    iteration: int
    records: tuple[FaultRecord, ...] = ()


class CallCompleted(msgspec.Struct, frozen=True):
    """The first active rank has returned."""

    call: int
    iteration: int


class Committed(msgspec.Struct, frozen=True):
    call: int
    iteration: int


class CallRefused(msgspec.Struct, frozen=True):
    """The call can't continue. `given_up`: the function failed without progress too often."""

    call: int
    reason: str
    given_up: bool = False


ToRank = (
    Entered | CallUnderway | RanksMissing | Interrupt | Restart | BeginIteration | CallCompleted | Committed
    | Exchanged | CallRefused
)  # fmt: skip


def too_large(order: ToRank, *, frame_bytes: int, bytes_max: int) -> CallRefused:
    """Returns what a rank gets instead of an order that no frame can hold."""
    return CallRefused(
        order.call,
        f"cannot go on with the call: {type(order).__name__} takes {frame_bytes} bytes, "
        f"and a frame holds {bytes_max}; exchange shorter values in rank assignment",
    )
