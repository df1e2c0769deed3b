"""What do ranks, nodes and the coordinator say to each other about a call of a function under the in-process Wrapper?

All ranks of a cycle make the same calls in the same order; a call is counted from 1, its iterations from 0. A rank is
known by its number in the cycle ("member"); its current number changes with each iteration.
"""

from __future__ import annotations

import enum

import msgspec

EXCHANGE_NAMES_MAX = 128  # in the rank assignment of one iteration; the same number as on the wire
EXCHANGE_NAMES_OPEN_MAX = 16  # of them, for which some rank has given no value yet


class Stage(enum.IntEnum):
    """The place of a rank as it enters, or comes back after its connection was lost."""

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
    DISCARDED = 2  # rank assignment let go of it, as every rank knows


class CallSettings(msgspec.Struct, frozen=True):
    last_call_wait_s: float = 1.0
    soft_timeout_s: float = 60.0
    hard_timeout_s: float = 90.0
    termination_grace_s: float = 5.0
    barrier_timeout_s: float = 120.0
    heartbeat_timeout_s: float = 30.0  # silence after which who can't be reached is lost


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


class IterationBegan(msgspec.Struct, frozen=True):
    """Rank assignment is done. `active_rank` None: a reserve."""

    call: int
    iteration: int
    rank: int
    world_size: int
    active_rank: int | None
    active_world_size: int


class RankFault(msgspec.Struct, frozen=True):
    """`rank` -1: told by the supervisor, which knows the member only."""

    call: int
    iteration: int
    rank: int
    interruption: Interruption
    reason: str


class FaultsReported(msgspec.Struct, frozen=True):
    """The answer to Interrupt: the rank has told its fault, or has none."""

    call: int
    iteration: int


class BarrierArrive(msgspec.Struct, frozen=True):
    call: int
    iteration: int
    barrier: Barrier
    rank: int
    active: bool


class CallLeave(msgspec.Struct, frozen=True):
    """`unfit`: a health check has refused the rank. Its process ends with an error, and a new one may stand in."""

    call: int
    iteration: int
    why: Leaving
    reason: str
    unfit: bool = False


class ExchangeValue(msgspec.Struct, frozen=True):
    """Given under a name to all who take part in the assignment of this iteration."""

    call: int
    iteration: int
    name: str
    rank: int
    value: str


FromRank = CallEnter | IterationBegan | RankFault | FaultsReported | BarrierArrive | CallLeave | ExchangeValue

# --- of a rank, by its node ----------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    """A process was started for the rank."""


class Lost(msgspec.Struct, frozen=True):
    """The rank's process has ended, or can't be reached. `failed`: not by its own wish, so a new one may stand in."""

    interruption: Interruption
    reason: str
    failed: bool


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

    `anew`: new processes join. Numbers are the initial ones, and rank assignment starts again on all ranks, so that
    nobody has to know what was before.
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
    """`history` and `exchanges`: what a rank that joins late, or that knows of ranks that are gone, begins from."""

    call: int
    iteration: int = 0
    history: tuple[BeginIteration, ...] = ()
    exchanges: tuple[Exchanged, ...] = ()


class CallUnderway(msgspec.Struct, frozen=True):
    """The call goes on without this rank, which joins its next iteration, however long that takes."""

    call: int


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
    """`given_up`: the function itself came to nothing, again and again."""

    call: int
    reason: str
    given_up: bool = False


ToRank = (
    Entered | CallUnderway | Interrupt | Restart | BeginIteration | CallCompleted | Committed | Exchanged | CallRefused
)
