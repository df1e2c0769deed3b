"""What do the frames of the in-process Wrapper mean, and how are its orders encoded? Protobuf stops here.

This is the part of worker_codec.py for wrapped calls: values from a worker are checked for shape and bounds.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdfast_wire.call_bounds import (
    EXCHANGE_NAME_CHARACTERS_MAX,
    EXCHANGE_VALUE_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
)
from holdfast_wire.framing import SUPERVISOR_FRAME_BYTES_MAX, FrameTooLongError, encode

from supervisor.core.calls import words

if TYPE_CHECKING:
    from holdfast_wire.v1 import worker_pb2

KINDS = frozenset(
    {
        "call_enter", "iteration_began", "rank_fault", "faults_reported", "barrier_arrive", "call_leave",
        "exchange_value",
    }
)  # fmt: skip
COUNT_MAX = 2**31 - 1
DURATION_S_MAX = 10 * 365 * 24 * 3600.0

Choice = TypeVar("Choice", bound=IntEnum)


class CallFrameError(ValueError):
    """Raised for a frame that no Wrapper sends."""


# --- from the worker -----------------------------------------------------------------------------------------------


def decode(frame: worker_pb2.WorkerFrame, kind: str) -> words.FromRank:
    """Decodes a frame whose `kind` is one of KINDS. Raises CallFrameError."""
    match kind:
        case "call_enter":
            return _enter(frame.call_enter)
        case "iteration_began":
            told = frame.iteration_began
            active_rank = _count(told.active_rank) if told.HasField("active_rank") else None
            numbers = _count(told.rank), _count(told.world_size), active_rank, _count(told.active_world_size)
            return words.IterationBegan(*_position(told), *numbers)
        case "rank_fault":
            fault = frame.rank_fault
            interruption = _choice(words.Interruption, fault.interruption)
            return words.RankFault(*_position(fault), _count(fault.rank), interruption, _reason(fault.reason))
        case "faults_reported":
            return words.FaultsReported(*_position(frame.faults_reported))
        case "barrier_arrive":
            arrival = frame.barrier_arrive
            barrier = _choice(words.Barrier, arrival.barrier)
            return words.BarrierArrive(*_position(arrival), barrier, _count(arrival.rank), arrival.active)
        case "call_leave":
            leave = frame.call_leave
            why = _choice(words.Leaving, leave.why)
            return words.CallLeave(*_position(leave), why, _reason(leave.reason), leave.unfit)
        case "exchange_value":
            return _value(frame.exchange_value)
        case _:
            raise CallFrameError(f"cannot read a frame of a call: its kind is {kind}")


def _enter(enter: worker_pb2.CallEnter) -> words.CallEnter:
    settings = enter.settings
    return words.CallEnter(
        call=_call(enter.call),
        initial_rank=_count(enter.initial_rank),
        initial_world_size=_count(enter.initial_world_size),
        settings=words.CallSettings(
            last_call_wait_s=_duration(settings.last_call_wait_s),
            soft_timeout_s=_timeout(settings.soft_timeout_s),
            hard_timeout_s=_timeout(settings.hard_timeout_s),
            termination_grace_s=_duration(settings.termination_grace_s),
            barrier_timeout_s=_timeout(settings.barrier_timeout_s),
            heartbeat_timeout_s=_timeout(settings.heartbeat_timeout_s),
        ),
        stage=_choice(words.Stage, enter.stage),
        iteration=_count(enter.iteration),
        rank=_count(enter.rank),
        world_size=_count(enter.world_size),
        active=enter.active,
    )


def _value(told: worker_pb2.ExchangeValue) -> words.ExchangeValue:
    if len(told.name) > EXCHANGE_NAME_CHARACTERS_MAX or len(told.value) > EXCHANGE_VALUE_CHARACTERS_MAX:
        sizes = f"{len(told.name)} and {len(told.value)} characters"
        limits = f"{EXCHANGE_NAME_CHARACTERS_MAX} and {EXCHANGE_VALUE_CHARACTERS_MAX}"
        raise CallFrameError(f"cannot take a name and a value of {sizes}: the limits are {limits}")
    return words.ExchangeValue(*_position(told), told.name, _count(told.rank), told.value)


class _Positioned(Protocol):
    @property
    def call(self) -> int: ...
    @property
    def iteration(self) -> int: ...


def _position(told: _Positioned) -> tuple[int, int]:
    return _call(told.call), _count(told.iteration)


def _call(number: int) -> int:
    if not 0 < number <= COUNT_MAX:
        raise CallFrameError(f"cannot take call number {number}")
    return number


def _count(number: int) -> int:
    if not 0 <= number <= COUNT_MAX:
        raise CallFrameError(f"cannot take a count of {number}")
    return number


def _reason(text: str) -> str:
    return text[:REASON_CHARACTERS_MAX]


def _choice(kind: type[Choice], number: int) -> Choice:
    try:
        return kind(number)
    except ValueError as error:
        raise CallFrameError(f"cannot take {number} for a {kind.__name__}") from error


def _duration(duration_s: float) -> float:
    if not (math.isfinite(duration_s) and duration_s >= 0):
        raise CallFrameError(f"cannot take a duration of {duration_s} s")
    return min(duration_s, DURATION_S_MAX)


def _timeout(timeout_s: float) -> float:
    # A zero timeout would end a healthy rank.
    if _duration(timeout_s) == 0:
        raise CallFrameError("cannot take a timeout of 0 s")
    return min(timeout_s, DURATION_S_MAX)


# --- to the worker -------------------------------------------------------------------------------------------------


def encode_order(order: words.ToRank) -> bytes:
    """Returns the whole frame. An order that does not fit becomes a refusal with a reason for the rank."""
    try:
        return _frame(_order(order))
    except FrameTooLongError as error:
        refused = words.too_large(order, frame_bytes=error.frame_bytes, bytes_max=error.frame_bytes_max)
        return _frame(_order(refused))


def _order(order: words.ToRank) -> worker_pb2.SupervisorFrame:
    from holdfast_wire.v1 import worker_pb2

    match order:
        case words.Entered(call, iteration, history, exchanges):
            entered = worker_pb2.Entered(
                call=call,
                iteration=iteration,
                history=[_begin(each) for each in history],
                exchanges=[_exchanged(each) for each in exchanges],
            )
            return worker_pb2.SupervisorFrame(entered=entered)
        case words.CallUnderway(call):
            return worker_pb2.SupervisorFrame(call_underway=worker_pb2.CallUnderway(call=call))
        case words.Interrupt(call, iteration):
            return worker_pb2.SupervisorFrame(interrupt=worker_pb2.Interrupt(call=call, iteration=iteration))
        case words.Restart(call, iteration, records):
            told = [
                worker_pb2.FaultRecord(
                    rank=each.rank,
                    interruption=each.interruption.name,
                    reason=each.reason,
                )
                for each in records
            ]
            restart = worker_pb2.Restart(call=call, iteration=iteration, records=told)
            return worker_pb2.SupervisorFrame(restart=restart)
        case words.BeginIteration():
            return worker_pb2.SupervisorFrame(begin_iteration=_begin(order))
        case words.CallCompleted(call, iteration):
            completed = worker_pb2.CallCompleted(call=call, iteration=iteration)
            return worker_pb2.SupervisorFrame(call_completed=completed)
        case words.Committed(call, iteration):
            return worker_pb2.SupervisorFrame(committed=worker_pb2.Committed(call=call, iteration=iteration))
        case words.Exchanged():
            return worker_pb2.SupervisorFrame(exchanged=_exchanged(order))
        case words.CallRefused(call, reason, given_up):
            refused = worker_pb2.CallRefused(call=call, reason=reason, given_up=given_up)
            return worker_pb2.SupervisorFrame(call_refused=refused)


def _begin(order: words.BeginIteration) -> worker_pb2.BeginIteration:
    from holdfast_wire.v1 import worker_pb2

    return worker_pb2.BeginIteration(
        call=order.call,
        iteration=order.iteration,
        world_size=order.world_size,
        terminated_ranks=order.terminated_ranks,
        anew=order.anew,
    )


def _exchanged(order: words.Exchanged) -> worker_pb2.Exchanged:
    from holdfast_wire.v1 import worker_pb2

    return worker_pb2.Exchanged(call=order.call, iteration=order.iteration, name=order.name, values=dict(order.values))


def _frame(message: worker_pb2.SupervisorFrame) -> bytes:
    return encode(message.SerializeToString(), frame_bytes_max=SUPERVISOR_FRAME_BYTES_MAX)
