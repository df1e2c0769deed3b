"""What do the bytes of the worker channel mean? Records become messages by field names (edges/codec).

Values from a worker are checked for shape and bounds: what passes is finite, of a sane size and of a known kind. A
frame that only a newer client sends is Unknown and can be skipped; so is one with such a word, unless the word has a
substitute. Protobuf is loaded with the first frame: it takes 15 ms, which would delay the first workers.
"""

from __future__ import annotations

from functools import cache
from typing import cast, get_args

import msgspec
from holdfast_wire.call_bounds import EXCHANGE_VALUE_CHARACTERS_MAX, REASON_CHARACTERS_MAX
from holdfast_wire.framing import SUPERVISOR_FRAME_BYTES_MAX, WORKER_FRAME_BYTES_MAX, FrameTooLongError
from holdfast_wire.framing import encode as framed
from holdfast_wire.page_layout import SECTION_NAME_CHARACTERS_MAX, SECTION_SLOTS_MAX

from supervisor.core.wrapped_calls.call_messages import Interruption, Leaving, ToRank, too_large
from supervisor.edges.codec.message_codec import MessageCodec
from supervisor.edges.codec.scalars import UnknownKindError
from supervisor.edges.codec.value_bounds import COUNT_MAX, Bounds
from supervisor.edges.workers.channel.worker_frames import (
    FromWorker,
    Limits,
    LimitsCalculated,
    ToWorker,
    Unknown,
    WorkerProtocolError,
)

NAME_CHARACTERS_MAX = SECTION_NAME_CHARACTERS_MAX  # also that of a value to exchange
DESCRIPTION_CHARACTERS_MAX = 4096

_FROM_WORKER = Bounds(
    error=WorkerProtocolError,
    whole_numbers={"call": (1, COUNT_MAX), "rank": (0, COUNT_MAX)},
    # A zero timeout or limit would end a healthy rank.
    never_zero=frozenset(
        {
            "soft_timeout_s", "hard_timeout_s", "barrier_timeout_s", "heartbeat_timeout_s",
            "initial_heartbeat_s", "heartbeat_s", "out_of_section_s", "limit_s",
        }
    ),
    never_cut={
        "job_id": WORKER_FRAME_BYTES_MAX, "name": NAME_CHARACTERS_MAX, "value": EXCHANGE_VALUE_CHARACTERS_MAX,
    },
    cut={
        "reason": REASON_CHARACTERS_MAX, "description": DESCRIPTION_CHARACTERS_MAX, "text": WORKER_FRAME_BYTES_MAX,
    },
    bytes={"token": WORKER_FRAME_BYTES_MAX},
    items={"open_sections": SECTION_SLOTS_MAX, "sections": SECTION_SLOTS_MAX},
    # Without these records, the others would wait for a rank that has failed or left.
    substitutes={"RankFault.interruption": Interruption.EXCEPTION, "CallLeave.why": Leaving.FAULT},
)  # fmt: skip
_TO_WORKER = msgspec.structs.replace(_FROM_WORKER, never_zero=frozenset(), cut={"reason": SUPERVISOR_FRAME_BYTES_MAX})


@cache
def _from_worker() -> MessageCodec:
    from holdfast_wire.v1 import worker_pb2

    return MessageCodec(get_args(FromWorker), worker_pb2.WorkerFrame, _FROM_WORKER)


@cache
def _to_worker() -> MessageCodec:
    from holdfast_wire.v1 import worker_pb2

    return MessageCodec(get_args(ToWorker), worker_pb2.SupervisorFrame, _TO_WORKER)


def decode(payload: bytes) -> FromWorker:
    """Decodes a frame. Raises WorkerProtocolError."""
    try:
        told = cast("FromWorker", _from_worker().decode(payload))
    except UnknownKindError as error:
        return Unknown(str(error))
    if type(told) is LimitsCalculated:
        _check_names(told.limits)
    return told


def _check_names(limits: Limits) -> None:
    names = {name for name, _ in limits.sections}
    if "" in names or len(names) != len(limits.sections):
        raise WorkerProtocolError("cannot take limits of sections: a name is empty or comes twice")


def encode(told: ToWorker) -> bytes:
    """Returns the whole frame. Raises FrameTooLongError."""
    return framed(_to_worker().encode(told), frame_bytes_max=SUPERVISOR_FRAME_BYTES_MAX)


def encode_order(order: ToRank) -> bytes:
    """Returns the whole frame. An order that does not fit becomes a refusal with a reason for the rank."""
    try:
        return encode(order)
    except FrameTooLongError as error:
        return encode(too_large(order, frame_bytes=error.frame_bytes, bytes_max=error.frame_bytes_max))
