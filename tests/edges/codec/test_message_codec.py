"""One wire's codec: what arrives is what was sent, within this wire's bounds, or this wire's error."""

from __future__ import annotations

import math

import pytest
from holdfast_wire.v1 import worker_pb2

from supervisor.core.wrapped_calls.call_messages import (
    CallEnter,
    CallLeave,
    CallSettings,
    FaultsReported,
    Leaving,
    RankFault,
)
from supervisor.edges.codec.message_codec import MessageCodec
from supervisor.edges.codec.scalars import UnknownKindError
from supervisor.edges.codec.value_bounds import SECONDS_MAX, Bounds


class WireError(ValueError):
    """The error of the wire under test."""


CODEC = MessageCodec(
    (CallEnter, CallLeave, FaultsReported),
    worker_pb2.WorkerFrame,
    Bounds(error=WireError, whole_numbers={"call": (1, 9)}, cut={"reason": 4}),
)


def test_what_arrives_is_what_was_sent_and_text_is_cut_by_this_wire():
    assert CODEC.decode(CODEC.encode(FaultsReported(1, 2))) == FaultsReported(1, 2)
    leave = CallLeave(1, 2, Leaving.FAULT, "too long")
    assert CODEC.decode(CODEC.encode(leave)) == CallLeave(1, 2, Leaving.FAULT, "too ")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff", "cannot read WorkerFrame of 1 bytes"),
        (b"", "cannot read WorkerFrame: it is empty"),
        (CODEC.encode(FaultsReported(10, 2)), "cannot take 10 for call: it must be from 1 to 9"),
        (worker_pb2.WorkerFrame(call_enter=worker_pb2.CallEnter(call=1)).SerializeToString(), "settings is missing"),
    ],
)
def test_what_is_no_message_of_this_wire_raises_its_error(payload: bytes, reason: str):
    with pytest.raises(WireError, match=reason):
        CODEC.decode(payload)


def test_a_kind_without_a_record_is_told_apart():
    fault = worker_pb2.WorkerFrame(rank_fault=worker_pb2.RankFault(call=1))
    with pytest.raises(UnknownKindError, match="cannot read WorkerFrame: this version has none of that kind"):
        CODEC.decode(fault.SerializeToString())
    with pytest.raises(ValueError, match="cannot send RankFault in WorkerFrame"):
        CODEC.encode(RankFault(1, 1, 1, 0, ""))  # pyright: ignore[reportArgumentType]


def test_a_duration_longer_than_the_longest_is_the_longest_but_endless_is_refused():
    enter = worker_pb2.CallEnter(call=1, settings=worker_pb2.CallSettings(soft_timeout_s=1e300))
    told = CODEC.decode(worker_pb2.WorkerFrame(call_enter=enter).SerializeToString())
    assert isinstance(told, CallEnter)
    assert told.settings == CallSettings(0, SECONDS_MAX, 0, 0, 0, 0)
    enter.settings.soft_timeout_s = math.inf
    with pytest.raises(WireError, match="inf for soft_timeout_s"):
        CODEC.decode(worker_pb2.WorkerFrame(call_enter=enter).SerializeToString())
