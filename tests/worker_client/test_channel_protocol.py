"""The channel's protocol without a socket: any chunking, garbage, bounds."""

from __future__ import annotations

import itertools

import pytest
from holdfast_wire.framing import WORKER_FRAME_BYTES_MAX, Decoder, encode
from holdfast_wire.v1 import worker_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

from worker_client.channel_protocol import (
    Accepted,
    ChannelProtocol,
    Identity,
    LeaseTold,
    Refused,
    StacksRequested,
    Welcomed,
)
from worker_client.errors import ChannelProtocolError
from worker_client.progress_page_writer import Snapshot
from worker_client.timeouts import Limits
from worker_client.workload_control import WorkloadAction, WorkloadControlRequest

IDENTITY = Identity(job_id="j", cycle=1, rank=2, local_rank=3, token=b"t")
WELCOME = wire.SupervisorFrame(
    welcome=wire.Welcome(
        protocol=1, cycle=1, rank=2, limits=wire.Limits(heartbeat_s=2, sections=[wire.SectionLimit(name="a")]),
        sections=["a"], warm_up_steps=5, safety_factor=3,
    )
)  # fmt: skip
LATER = (
    wire.SupervisorFrame(accepted=wire.Accepted(request_id=4)),
    wire.SupervisorFrame(stacks_request=wire.StacksRequest(request_id=5)),
    wire.SupervisorFrame(),  # a kind that only a later protocol knows
    wire.SupervisorFrame(refused=wire.Refused(reason="no", retry=True)),
)
STREAM = b"".join(
    encode(frame.SerializeToString(), frame_bytes_max=WORKER_FRAME_BYTES_MAX) for frame in (WELCOME, *LATER)
)


def _read(data: bytes) -> wire.WorkerFrame:
    (payload,) = Decoder(frame_bytes_max=WORKER_FRAME_BYTES_MAX).feed(data)
    return wire.WorkerFrame.FromString(payload)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_chunking_gives_the_same_events(cuts: list[int]):
    session = ChannelProtocol(IDENTITY)
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [event for start, end in itertools.pairwise(edges) for event in session.receive(STREAM[start:end])]
    welcomed = Welcomed(1, 2, False, Limits(heartbeat_s=2.0, sections=(("a", None),)), ("a",), 5, 3.0, 0.0, False)
    assert events == [welcomed, Accepted(4), StacksRequested(5), Refused("no", True)]


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error_or_nothing(data: bytes):
    session = ChannelProtocol(IDENTITY)
    try:
        events = session.receive(data)
    except ChannelProtocolError:
        return
    assert all(isinstance(event, Welcomed | Refused) for event in events) or session.is_welcome


@pytest.mark.parametrize("frame", LATER[:2], ids=["accepted", "stacks request"])
def test_nothing_counts_before_welcome(frame: wire.SupervisorFrame):
    data = encode(frame.SerializeToString(), frame_bytes_max=WORKER_FRAME_BYTES_MAX)
    with pytest.raises(ChannelProtocolError, match="before Welcome"):
        ChannelProtocol(IDENTITY).receive(data)


def test_hello_leaves_out_what_was_not_given():
    hello = _read(ChannelProtocol(IDENTITY).hello(now_ns=9, can_share_page=True, warm_up_steps=None)).hello
    assert not hello.HasField("warm_up_steps")
    assert (hello.stacks_signal, hello.stacks_fd, hello.monotonic_ns, hello.can_share_page) == (0, 0, 9, True)
    hello = _read(ChannelProtocol(IDENTITY).hello(now_ns=9, can_share_page=True, warm_up_steps=0, stacks=(23, 7))).hello
    assert hello.HasField("warm_up_steps")
    assert (hello.warm_up_steps, hello.stacks_signal, hello.stacks_fd) == (0, 23, 7)


def test_progress_travels_as_ages():
    snapshot = Snapshot(10, 0, 0, 40, True, 2, ((0, 50), (7, 60)))
    progress = _read(ChannelProtocol(IDENTITY).progress(snapshot, now_ns=100)).progress
    assert not progress.HasField("heartbeat_age_ns")
    assert (progress.initialised_age_ns, progress.out_of_section_age_ns, progress.steps_since_first) == (90, 60, 2)
    assert [(each.slot, each.age_ns) for each in progress.open_sections] == [(0, 50), (7, 40)]
    in_a_call = _read(ChannelProtocol(IDENTITY).progress(Snapshot(0, 0, 0, 40, False, 0, ()), now_ns=100)).progress
    assert not in_a_call.HasField("initialised_age_ns")
    beaten = Snapshot(10, 70, 3, 40, True, 2, ())
    assert _read(ChannelProtocol(IDENTITY).progress(beaten, now_ns=100)).progress.heartbeat_age_ns == 30


def test_what_people_write_is_cut_to_fit_a_frame():
    session = ChannelProtocol(IDENTITY)
    request = WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "ü" * 100_000)
    assert set(_read(session.workload_control(request, 1)).workload_control.description) == {"ü"}
    assert set(_read(session.stacks_answer(1, "ü" * 100_000)).stacks_answer.text) == {"ü"}


def test_a_question_on_the_lease_and_its_answer_have_one_number():
    session = ChannelProtocol(IDENTITY)
    assert _read(session.lease_question(7)).lease_question.request_id == 7
    welcome = wire.SupervisorFrame(welcome=wire.Welcome(answers_lease_questions=True, lease_is_unbounded=True))
    answer = wire.SupervisorFrame(lease=wire.Lease(request_id=7, left_ns=3))
    frames = [encode(each.SerializeToString(), frame_bytes_max=1000) for each in (welcome, answer)]
    welcomed, told = session.receive(b"".join(frames))
    assert isinstance(welcomed, Welcomed)
    assert (welcomed.answers_lease_questions, welcomed.lease_is_unbounded) == (True, True)
    assert told == LeaseTold(7, 3)


def test_limits_keep_none_apart_from_zero():
    limits = Limits(None, 4.0, None, (("a", None), ("b", 2.0)))
    told = _read(ChannelProtocol(IDENTITY).limits_calculated(limits)).limits_calculated.limits
    assert [told.HasField(name) for name in ("initial_heartbeat_s", "heartbeat_s", "out_of_section_s")] == [
        False, True, False,
    ]  # fmt: skip
    assert [section.HasField("limit_s") for section in told.sections] == [False, True]
