"""For any bytes, the codec returns a valid message or raises WorkerProtocolError; nothing else."""

from __future__ import annotations

import math

import pytest
from holdfast_wire.framing import HEADER_BYTES
from holdfast_wire.page_layout import SECTION_SLOTS_MAX
from holdfast_wire.v1 import worker_pb2
from hypothesis import given
from hypothesis import strategies as st

from supervisor.edges.codec.value_bounds import SECONDS_MAX
from supervisor.edges.workers.channel import worker_codec as codec
from supervisor.edges.workers.channel import worker_frames as frames


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(payload: bytes):
    try:
        message = codec.decode(payload)
    except frames.WorkerProtocolError:
        return
    assert isinstance(message, frames.FromWorker)


@given(st.floats() | st.integers(-5, 5).map(float))
def test_a_limit_is_finite_and_above_zero(limit_s: float):
    frame = worker_pb2.WorkerFrame()
    frame.limits_calculated.limits.heartbeat_s = limit_s
    if math.isfinite(limit_s) and limit_s > 0:
        told = codec.decode(frame.SerializeToString())
        assert told == frames.LimitsCalculated(frames.Limits(heartbeat_s=min(limit_s, SECONDS_MAX)))
    else:
        with pytest.raises(frames.WorkerProtocolError):
            codec.decode(frame.SerializeToString())


def _sections(names: list[str]) -> bytes:
    frame = worker_pb2.WorkerFrame()
    for name in names:
        frame.limits_calculated.limits.sections.add(name=name)
    return frame.SerializeToString()


@pytest.mark.parametrize("names", [["a", "a"], [""], ["x" * 300], [str(n) for n in range(300)]])
def test_section_names_are_bounded_and_unique(names: list[str]):
    with pytest.raises(frames.WorkerProtocolError):
        codec.decode(_sections(names))


def test_long_words_are_cut():
    control = worker_pb2.WorkloadControl(description="x" * 10_000)
    told = codec.decode(worker_pb2.WorkerFrame(workload_control=control).SerializeToString())
    assert isinstance(told, frames.WorkloadControl)
    assert (told.action, len(told.description)) == (frames.Control.CONTINUE, codec.DESCRIPTION_CHARACTERS_MAX)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\x9a\x06\x00", "this version has none of that kind"),  # field 99
        (b"\x22\x02\x08\x09", "cannot take '9' for action"),
    ],
)
def test_a_frame_of_a_newer_client_is_told_from_an_empty_one(payload: bytes, why: str):
    told = codec.decode(payload)
    assert isinstance(told, frames.Unknown)
    assert why in told.why
    with pytest.raises(frames.WorkerProtocolError, match="it is empty"):
        codec.decode(b"")


def test_absent_is_not_zero():
    frame = worker_pb2.WorkerFrame(hello=worker_pb2.Hello(protocol=1))
    told = codec.decode(frame.SerializeToString())
    assert isinstance(told, frames.Hello)
    assert told.warm_up_steps is None
    frame.hello.warm_up_steps = 0
    told = codec.decode(frame.SerializeToString())
    assert isinstance(told, frames.Hello)
    assert told.warm_up_steps == 0
    progress = codec.decode(worker_pb2.WorkerFrame(progress=worker_pb2.Progress()).SerializeToString())
    assert isinstance(progress, frames.Progress)
    assert progress.heartbeat_age_ns is None


def test_frames_to_the_worker_carry_what_they_say():
    limits = frames.Limits(initial_heartbeat_s=1.0, sections=(("a", 2.0), ("b", None)))
    welcome = _parsed(codec.encode(_welcome(limits, ("a", "b")))).welcome
    assert welcome.protocol == frames.PROTOCOL
    assert (welcome.cycle, welcome.rank, welcome.page_shared, welcome.warm_up_steps) == (4, 5, True, 3)
    assert (welcome.safety_factor, welcome.install_exception_hook) == (2.5, True)
    assert welcome.learned_limit_floor_s == 0.75
    assert welcome.limits.initial_heartbeat_s == 1.0
    assert not welcome.limits.HasField("heartbeat_s")
    assert not welcome.limits.HasField("out_of_section_s")
    assert [(each.name, each.HasField("limit_s")) for each in welcome.limits.sections] == [("a", True), ("b", False)]
    refused = _parsed(codec.encode(frames.Refused("cannot", retry=True))).refused
    assert (refused.reason, refused.retry) == ("cannot", True)
    assert _parsed(codec.encode(frames.Accepted(7))).accepted.request_id == 7
    assert _parsed(codec.encode(frames.StacksRequest(8))).stacks_request.request_id == 8


def test_a_welcome_holds_as_many_sections_as_a_rank_may_have_with_the_longest_names():
    names = tuple(f"{slot:0{codec.NAME_CHARACTERS_MAX - 100}}" + "é" * 100 for slot in range(SECTION_SLOTS_MAX))
    limits = frames.Limits(sections=tuple((name, 1.5) for name in names))
    welcome = _parsed(codec.encode(_welcome(limits, names))).welcome
    assert tuple(welcome.sections) == tuple(each.name for each in welcome.limits.sections) == names


def _welcome(limits: frames.Limits, names: tuple[str, ...]) -> frames.Welcome:
    return frames.Welcome(
        cycle=4, rank=5, page_shared=True, limits=limits, sections=names, warm_up_steps=3, safety_factor=2.5,
        learned_limit_floor_s=0.75, install_exception_hook=True,
    )  # fmt: skip


def _parsed(frame: bytes) -> worker_pb2.SupervisorFrame:
    message = worker_pb2.SupervisorFrame()
    message.ParseFromString(frame[HEADER_BYTES:])
    return message
