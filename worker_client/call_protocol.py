"""What do a rank and its supervisor say to each other about one call of a wrapped function?

Sans-I/O, like channel_protocol.py: frames out, events in. holdfast_wire/v1/worker.proto says what each means.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from holdfast_wire.call_bounds import (
    EXCHANGE_NAME_CHARACTERS_MAX,
    EXCHANGE_VALUE_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
)
from holdfast_wire.framing import WORKER_FRAME_BYTES_MAX, encode
from holdfast_wire.v1 import worker_pb2


class Stage(enum.Enum):
    """The place of the rank's main thread; names as on the wire."""

    ENTERING = enum.auto()  # waits for Entered
    RUNNING = enum.auto()
    COMPLETING = enum.auto()  # waits for Committed
    UNWINDING = enum.auto()  # interrupted or failed, not yet at the iteration barrier
    RESTARTING = enum.auto()  # waits for the decision on the next iteration


class Leaving(enum.Enum):
    """Why a rank no longer takes part in the call; names as on the wire."""

    DONE = enum.auto()
    FAULT = enum.auto()
    DISCARDED = enum.auto()


class Barrier(enum.Enum):
    """Where a rank has arrived; names as on the wire."""

    COMPLETION = enum.auto()  # the end of the function
    ITERATION = enum.auto()


class CallSettings(NamedTuple):
    """Those of the Wrapper's arguments that the coordinator needs."""

    last_call_wait: timedelta
    soft_timeout: timedelta
    hard_timeout: timedelta
    termination_grace_time: timedelta
    barrier_timeout: timedelta
    completion_timeout: timedelta
    heartbeat_timeout: timedelta


# --- what a rank says: the messages of worker.proto, field by field -------------------------------------------------


class CallEnter(NamedTuple):
    call: int
    initial_rank: int
    initial_world_size: int
    settings: CallSettings
    stage: Stage = Stage.ENTERING
    iteration: int = 0
    rank: int = 0
    world_size: int = 0
    active: bool = False
    overdue: bool = False  # asks for RanksMissing


class IterationBegan(NamedTuple):
    call: int
    iteration: int
    rank: int
    world_size: int
    active_rank: int | None
    active_world_size: int


class RankFault(NamedTuple):
    call: int
    iteration: int
    rank: int
    interruption: str  # a name of attribution.Interruption
    reason: str


class FaultsReported(NamedTuple):
    call: int
    iteration: int


class BarrierArrive(NamedTuple):
    call: int
    iteration: int
    barrier: Barrier
    rank: int
    active: bool
    overdue: bool = False


class CallLeave(NamedTuple):
    call: int
    iteration: int
    why: Leaving
    reason: str
    unfit: bool = False  # a health check has refused this rank


class ExchangeValue(NamedTuple):
    call: int
    iteration: int
    name: str
    rank: int
    value: str
    overdue: bool = False


Word = CallEnter | IterationBegan | RankFault | FaultsReported | BarrierArrive | CallLeave | ExchangeValue

# --- events ---------------------------------------------------------------------------------------------------------


class FaultRecord(NamedTuple):
    rank: int
    interruption: str  # a name of attribution.Interruption
    reason: str


class BeginIteration(NamedTuple):
    """The decision on the next iteration. `world_size` and `terminated_ranks` refer to the iteration that has ended.

    `anew`: new processes join, so rank assignment starts over, and all numbers are initial ones.
    """

    call: int
    iteration: int
    world_size: int
    terminated_ranks: frozenset[int]
    anew: bool = False


class Exchanged(NamedTuple):
    call: int
    iteration: int
    name: str
    values: Mapping[int, str]


class Entered(NamedTuple):
    """All ranks have entered. `history` and `exchanges`: all decisions so far, for a rank that replaces a lost one."""

    call: int
    iteration: int
    history: tuple[BeginIteration, ...]
    exchanges: tuple[Exchanged, ...]


class CallUnderway(NamedTuple):
    """The rank came too late. It receives Entered when the others restart, or learns that the call is over."""

    call: int


class RanksMissing(NamedTuple):
    """Answers an overdue message. `ranks`: the first of the `total` ranks that have not sent theirs, initial ones."""

    call: int
    ranks: tuple[int, ...]
    total: int


class Interrupt(NamedTuple):
    call: int
    iteration: int


class Restart(NamedTuple):
    call: int
    iteration: int
    faults: tuple[FaultRecord, ...]


class CallCompleted(NamedTuple):
    call: int
    iteration: int


class Committed(NamedTuple):
    call: int
    iteration: int


class CallRefused(NamedTuple):
    call: int
    reason: str
    given_up: bool = False  # The function failed without progress too often.


CallEvent = (
    Entered | CallUnderway | RanksMissing | Interrupt | Restart | BeginIteration | CallCompleted | Committed
    | Exchanged | CallRefused
)  # fmt: skip


def event(frame: worker_pb2.SupervisorFrame) -> CallEvent | None:
    """Returns what `frame` says about a call; None if it is about something else."""
    match frame.WhichOneof("body"):
        case "entered":
            told = frame.entered
            history = tuple(map(_decided, told.history))
            return Entered(told.call, told.iteration, history, tuple(map(_exchanged, told.exchanges)))
        case "call_underway":
            return CallUnderway(frame.call_underway.call)
        case "ranks_missing":
            missing = frame.ranks_missing
            return RanksMissing(missing.call, tuple(missing.ranks), missing.total)
        case "interrupt":
            return Interrupt(frame.interrupt.call, frame.interrupt.iteration)
        case "restart":
            faults = tuple(
                FaultRecord(record.rank, _interruption_name(record.interruption), record.reason)
                for record in frame.restart.records
            )
            return Restart(frame.restart.call, frame.restart.iteration, faults)
        case "begin_iteration":
            return _decided(frame.begin_iteration)
        case "call_completed":
            return CallCompleted(frame.call_completed.call, frame.call_completed.iteration)
        case "committed":
            return Committed(frame.committed.call, frame.committed.iteration)
        case "exchanged":
            return _exchanged(frame.exchanged)
        case "call_refused":
            refused = frame.call_refused
            return CallRefused(refused.call, refused.reason, refused.given_up)
        case _:
            return None


def _decided(told: worker_pb2.BeginIteration) -> BeginIteration:
    gone = frozenset(told.terminated_ranks)
    return BeginIteration(told.call, told.iteration, told.world_size, gone, told.anew)


def _exchanged(told: worker_pb2.Exchanged) -> Exchanged:
    return Exchanged(told.call, told.iteration, told.name, dict(told.values))


def _interruption_name(number: worker_pb2.Interruption.ValueType) -> str:
    try:
        return worker_pb2.Interruption.Name(number)
    except ValueError:  # of a later protocol
        return "EXCEPTION"


# --- frames ---------------------------------------------------------------------------------------------------------


def frame(word: Word) -> bytes:
    """Returns the frame that says this; cuts a long reason. Raises ValueError for a value that can't be exchanged."""
    name, adapt = _MESSAGES[type(word)]
    fields = word._asdict()
    if adapt is not None:
        adapt(fields)
    body: dict[str, Any] = {name: fields}
    return encode(worker_pb2.WorkerFrame(**body).SerializeToString(), frame_bytes_max=WORKER_FRAME_BYTES_MAX)


# How the fields of a word that are not plain values are sent.
Adapt = Callable[[dict[str, Any]], None]


def _adapt_enter(fields: dict[str, Any]) -> None:
    settings: CallSettings = fields["settings"]
    times = zip(settings._fields, settings, strict=True)
    fields["settings"] = {f"{name.removesuffix('_time')}_s": time.total_seconds() for name, time in times}
    fields["stage"] = fields["stage"].name


def _adapt_fault(fields: dict[str, Any]) -> None:
    fields["reason"] = sendable(fields["reason"])[:REASON_CHARACTERS_MAX]


def _adapt_arrival(fields: dict[str, Any]) -> None:
    fields["barrier"] = fields["barrier"].name


def _adapt_leave(fields: dict[str, Any]) -> None:
    fields["why"] = fields["why"].name
    fields["reason"] = sendable(fields["reason"])[:REASON_CHARACTERS_MAX]


def _check_value(fields: dict[str, Any]) -> None:
    name, value = fields["name"], fields["value"]
    if sendable(name) != name or sendable(value) != value:
        raise ValueError(
            f"cannot exchange {sendable(name)[:40]!r}: name or value has lone surrogates, which are not text; exchange "
            "what encodes as UTF-8"
        )
    if len(name) > EXCHANGE_NAME_CHARACTERS_MAX or len(value) > EXCHANGE_VALUE_CHARACTERS_MAX:
        limits = f"{EXCHANGE_NAME_CHARACTERS_MAX} and {EXCHANGE_VALUE_CHARACTERS_MAX}"
        raise ValueError(
            f"cannot exchange {name[:40]!r}: name and value have {len(name)} and {len(value)} characters, and the "
            f"limits are {limits}; exchange shorter ones"
        )


_MESSAGES: Mapping[type[Word], tuple[str, Adapt | None]] = {
    CallEnter: ("call_enter", _adapt_enter),
    IterationBegan: ("iteration_began", None),
    RankFault: ("rank_fault", _adapt_fault),
    FaultsReported: ("faults_reported", None),
    BarrierArrive: ("barrier_arrive", _adapt_arrival),
    CallLeave: ("call_leave", _adapt_leave),
    ExchangeValue: ("exchange_value", _check_value),
}


def sendable(text: str) -> str:
    """Replaces lone surrogates, which an exception's text may have and protobuf does not accept."""
    return text.encode(errors="replace").decode()
