"""Does every frame of the cluster stream mean the same on both nodes, and nothing if it is not from a peer?"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import cast, get_args

import msgspec
import pytest
from google.protobuf.message import Message
from holdfast_wire.framing import CLUSTER_FRAME_BYTES_MAX
from holdfast_wire.v1 import cluster_pb2 as wire
from holdfast_wire.v1 import worker_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core.cluster import cluster_messages
from supervisor.core.cluster.cluster_messages import CallReport, NodeJoined, Reported, StacksTaken, StopAsked, Told
from supervisor.core.elastic.elastic_messages import ElasticOrder, ElasticReport
from supervisor.core.facts import Cause, Evidence, JobState, StackGroup, Verdict
from supervisor.core.node.node_messages import Ordered
from supervisor.core.orders import Conclude, TellMembers, WindDown
from supervisor.core.wrapped_calls import call_messages
from supervisor.edges.codec.record_codec import member_name
from supervisor.edges.peers.codec.cluster_codec import decode, encode, payloads
from supervisor.edges.peers.codec.cluster_frames import Alive, ClusterProtocolError, Frame, Unknown
from supervisor.edges.peers.codec.cluster_stream_bounds import STREAM
from tests.edges.peers import every_frame
from tests.edges.peers.every_frame import Kind

QUICK = settings(max_examples=25)


@pytest.mark.parametrize(("kind", "frames"), every_frame.ALL, ids=[kind.__name__ for kind, _ in every_frame.ALL])
def test_every_frame_arrives_as_it_was_sent(kind: Kind, frames: st.SearchStrategy[Frame]):
    @QUICK
    @given(frames)
    def arrives(frame: Frame) -> None:
        assert decode(encode(frame)) == frame

    arrives()


@pytest.mark.parametrize(
    ("message", "kinds"),
    [
        (wire.Order, every_frame.ORDERS),
        (wire.Report, every_frame.REPORTS),
        (wire.ToRank, every_frame.TO_RANK),
        (wire.Word, every_frame.WORDS),
        (wire.ElasticOrder, get_args(ElasticOrder)),
        (wire.ElasticReport, get_args(ElasticReport)),
        (wire.ClusterFrame, (*every_frame.HANDSHAKE, Ordered, Reported)),
    ],
)
def test_the_wire_and_the_core_know_the_same_kinds(message: type[wire.Order], kinds: tuple[Kind, ...]):
    assert set(message.DESCRIPTOR.fields_by_name) == {member_name(kind) for kind in kinds}


def test_what_is_not_known_is_told_from_zero():
    for iteration in (None, 0):
        for age_s in (None, 0.0):
            failed = cluster_messages.NodeFailed("n", 0, "why", iteration)
            assert decode(encode(Reported("j", failed))) == Reported("j", failed)
            joined = NodeJoined("n", -1, Cause("why", age_s))
            assert decode(encode(Reported("j", joined))) == Reported("j", joined)
    assert decode(encode(Reported("j", NodeJoined("n", -1)))) == Reported("j", NodeJoined("n", -1))


def test_what_never_travels_is_not_sent():
    with pytest.raises(ValueError, match="cannot send DeadlineReached in Report: it never travels"):
        encode(Reported("j", cluster_messages.DeadlineReached()))
    with pytest.raises(ValueError, match="cannot send Unknown"):
        encode(Unknown())


def test_half_a_character_does_not_keep_a_report_from_being_sent():
    assert decode(encode(Reported("j", StopAsked("file \udcff", 15)))) == Reported("j", StopAsked("file ?", 15))


def test_what_a_file_of_the_user_said_is_sent_within_bounds():
    for age_s in (math.nan, math.inf, -math.inf, 1e300):
        received = decode(encode(Reported("j", NodeJoined("n", 1, Cause("why", age_s)))))
        assert isinstance(received, Reported)
    failed = cluster_messages.NodeFailed("n", 1, "r" * 100_000, training_iteration=10**30)
    received = decode(encode(Reported("j", failed)))
    assert received == Reported("j", cluster_messages.NodeFailed("n", 1, "r" * 8192, training_iteration=2**63 - 1))


# --- versions ------------------------------------------------------------------------------------------------------


def tagged(field: int, body: bytes) -> bytes:
    """Encodes a field with bytes or a message, by its number."""
    tag = field << 3 | 2
    return bytes([tag & 127 | 128, tag >> 7, len(body)]) + body


NEW_KIND = tagged(1000, b"\x08\x01")


def test_a_frame_order_or_report_of_a_newer_version_is_skipped():
    order = wire.Ordered(job_id="j", order=wire.Order.FromString(NEW_KIND))
    report = wire.Reported(job_id="j", report=wire.Report.FromString(NEW_KIND))
    to_rank = wire.TellMembers(cycle=1, members=[0], order=wire.ToRank.FromString(NEW_KIND))
    tell = wire.Ordered(job_id="j", order=wire.Order(tell_members=to_rank))
    for frame in (
        wire.ClusterFrame(ordered=order),
        wire.ClusterFrame(reported=report),
        wire.ClusterFrame(ordered=tell),
    ):
        assert decode(frame.SerializeToString()) == Unknown()
    assert decode(NEW_KIND) == Unknown()


def test_one_word_of_a_newer_version_leaves_the_others():
    told = [
        wire.Told(member=0, word=wire.Word.FromString(NEW_KIND)),
        wire.Told(member=1, word=wire.Word(started=wire.Started())),
    ]
    report = wire.Report(call_report=wire.CallReport(node="n", cycle=1, told=told))
    frame = wire.ClusterFrame(reported=wire.Reported(job_id="j", report=report))
    expected = Reported("j", CallReport("n", 1, (Told(1, call_messages.Started()),)))
    assert decode(frame.SerializeToString()) == expected


@QUICK
@given(every_frame.FRAMES)
def test_a_field_of_a_newer_version_is_ignored(frame: Frame):
    assert decode(encode(frame) + NEW_KIND) == frame


def test_fields_of_newer_versions_are_ignored_within_records_too():
    joined = wire.NodeJoined.FromString(wire.NodeJoined(node="n", cycle=2).SerializeToString() + NEW_KIND)
    frame = wire.ClusterFrame(reported=wire.Reported(job_id="j", report=wire.Report(node_joined=joined)))
    assert decode(frame.SerializeToString()) == Reported("j", NodeJoined("n", 2))


def _words(kind: object) -> Iterator[str]:
    """Yields Message.field of each word in this record, and in those that it holds."""
    for part in get_args(kind):
        yield from _words(part)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield from (f"{kind.__name__}.{field.name}",) if _is_word(field.type) else _words(field.type)


def _is_word(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


WORDS = frozenset(_words(Frame))


def _renew(message: Message) -> set[str]:
    """Gives each word in the message a value that no version has yet. Returns where words were."""
    found: set[str] = set()
    for _, value in cast("list[tuple[object, object]]", message.ListFields()):
        for each in cast("Sequence[object]", value) if isinstance(value, Sequence) else (value,):
            if isinstance(each, Message):
                found |= _renew(each)
    for field in message.DESCRIPTOR.fields:
        if (name := f"{message.DESCRIPTOR.name}.{field.name}") in WORDS:
            setattr(message, field.name, "word of the next version" if field.type == field.TYPE_STRING else 99)
            found.add(name)
    return found


@pytest.mark.parametrize(("_", "frames"), every_frame.ALL, ids=[kind.__name__ for kind, _ in every_frame.ALL])
def test_a_word_of_a_newer_version_is_taken_for_another_or_its_record_is_skipped(
    _: Kind, frames: st.SearchStrategy[Frame]
):
    @QUICK
    @given(frames)
    def is_read(frame: Frame) -> None:
        message = wire.ClusterFrame.FromString(encode(frame))
        words = _renew(message)
        received = decode(message.SerializeToString())
        assert words or received == frame
        assert words - set(STREAM.substitutes) or received != Unknown()

    is_read()


def test_substitutes_are_of_words_that_travel():
    assert set(STREAM.substitutes) <= WORDS
    assert WORDS - set(STREAM.substitutes) == {"BarrierArrive.barrier", "CallEnter.stage", "NodeStands.state"}


def test_an_end_and_a_fault_are_known_whatever_they_are_called():
    verdict = wire.Verdict(state="paused", exit_code=7, reason="why")
    expected = Ordered("j", Conclude(Verdict(JobState.FAILED, 7, "why")))
    assert decode(_ordered(conclude=wire.Conclude(verdict=verdict)).SerializeToString()) == expected
    lost = call_messages.Lost(call_messages.Interruption.EXCEPTION, "", failed=False)
    received = decode(_told(lost=wire.Lost.FromString(b"\x08\x63")).SerializeToString())
    assert received == Reported("j", CallReport("n", 1, (Told(0, lost),)))


# --- peers that are none -------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_bytes_of_a_stranger_are_refused_or_skipped(payload: bytes):
    with suppress(ClusterProtocolError):
        decode(payload)


@settings(max_examples=300)
@given(every_frame.FRAMES, st.data())
def test_a_frame_that_was_changed_on_its_way_is_refused_or_within_bounds(frame: Frame, data: st.DataObject):
    payload = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        changed = decode(bytes(payload[: data.draw(st.integers(0, len(payload)))]))
    except ClusterProtocolError:
        return
    if changed != Unknown():
        assert decode(encode(changed)) == changed


def _reported(**report: object) -> wire.ClusterFrame:
    return wire.ClusterFrame(reported=wire.Reported(job_id="j", report=wire.Report(**report)))  # pyright: ignore[reportArgumentType]


def _ordered(**order: object) -> wire.ClusterFrame:
    return wire.ClusterFrame(ordered=wire.Ordered(job_id="j", order=wire.Order(**order)))  # pyright: ignore[reportArgumentType]


def _told(**word: object) -> wire.ClusterFrame:
    told = wire.Told(member=0, word=wire.Word(**word))  # pyright: ignore[reportArgumentType]
    return _reported(call_report=wire.CallReport(node="n", cycle=1, told=[told]))


def _stacks_wanted(budget_s: float) -> wire.ClusterFrame:
    return _reported(stacks_wanted=wire.StacksWanted(node="n", cycle=1, budget_s=budget_s))


NO_TIMEOUTS = worker_pb2.CallEnter(call=1, settings=worker_pb2.CallSettings())


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (wire.ClusterFrame(), "ClusterFrame: it is empty"),
        (wire.ClusterFrame(ordered=wire.Ordered(job_id="j")), "order is missing"),
        (_ordered(), "Order: it is empty"),
        (_ordered(start_cycle=wire.StartCycle(reason="r")), "assignment is missing"),
        (_reported(job_opened=wire.JobOpened(node="n")), "rules is missing"),
        (_reported(node_joined=wire.NodeJoined(cycle=1)), "node of 0 characters"),
        (_reported(node_joined=wire.NodeJoined(node="n" * 257)), "node of 257 characters"),
        (_reported(node_joined=wire.NodeJoined(node="n", cycle=-2)), "-2 for cycle"),
        (_reported(store_served=wire.StoreServed(node="n", host="h", port=65536)), "65536 for port"),
        (_reported(node_succeeded=wire.NodeSucceeded(node="n", lost=[2**31])), "2147483648 for lost"),
        (_reported(node_succeeded=wire.NodeSucceeded(node="n", lost=[0] * 200_000)), "200000 lost"),
        (_ordered(wind_down=wire.WindDown(signal=65)), "65 for signal"),
        (_stacks_wanted(math.nan), "nan for budget_s"),
        (_stacks_wanted(math.inf), "inf for budget_s"),
        (_stacks_wanted(-0.5), "-0.5 for budget_s"),
        (_told(call_enter=NO_TIMEOUTS), "0.0 for soft_timeout_s"),
        (_told(rank_fault=worker_pb2.RankFault(call=1, rank=-2)), "-2 for rank"),
        (_told(rank_fault=worker_pb2.RankFault(rank=1)), "0 for call"),
        (_told(exchange_value=worker_pb2.ExchangeValue(call=1, value="v" * 9000)), "value of 9000"),
        (wire.ClusterFrame(hello=wire.Hello(job_id="j", node="n", incarnation="i", proof=bytes(300))), "proof of 300"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_value(frame: wire.ClusterFrame, reason: str):
    with pytest.raises(ClusterProtocolError, match=reason):
        decode(frame.SerializeToString())


def test_text_that_is_not_utf_8_is_refused():
    payload = encode(Reported("j", StopAsked("XXXX", 0))).replace(b"XXXX", b"\xff\xfe\xff\xfe")
    with pytest.raises(ClusterProtocolError, match="cannot read ClusterFrame of"):
        decode(payload)


# --- sizes ---------------------------------------------------------------------------------------------------------


def _fits(payload: bytes) -> bool:
    return len(payload) <= CLUSTER_FRAME_BYTES_MAX


@pytest.mark.parametrize(("stack", "count"), [("s" * 5000, 400), ("ö" * 600_000, 3)])
def test_evidence_always_fits_into_a_frame(stack: str, count: int):
    groups = tuple(StackGroup(tuple(range(group + 1)), f"{group}: {stack}") for group in range(count))
    evidence = Evidence(groups, ("note " * 100,) * 3000, "py-spy", 0.2)
    payload = encode(Reported("j", StacksTaken("n", 1, evidence)))
    assert _fits(payload)
    assert len(payload) > CLUSTER_FRAME_BYTES_MAX * 0.8
    received = decode(payload)
    assert isinstance(received, Reported)
    assert isinstance(received.report, StacksTaken)
    kept = received.report.evidence
    assert kept.groups[0].ranks == (0,)
    left_out = sum(len(group.ranks) for group in groups[len(kept.groups) :])
    assert kept.notes[-1].startswith(f"the stacks of {left_out} ranks are left out")


def test_an_order_to_ranks_that_no_frame_holds_is_a_refusal_of_the_call():
    exchanged = call_messages.Exchanged(3, 0, "tree/1", tuple((rank, "v" * 8000) for rank in range(140)))
    received = decode(encode(Ordered("j", TellMembers(1, (4, 5), exchanged))))
    assert isinstance(received, Ordered)
    assert isinstance(received.order, TellMembers)
    assert (received.order.cycle, received.order.members) == (1, (4, 5))
    assert isinstance(received.order.order, call_messages.CallRefused)
    assert received.order.order.call == 3
    assert "and a frame holds 1048576" in received.order.order.reason


def _told_in(frame: Frame) -> tuple[Told, ...]:
    assert isinstance(frame, Reported)
    assert isinstance(frame.report, CallReport)
    return frame.report.told


def test_what_many_ranks_say_comes_in_as_many_frames_as_it_takes():
    told = tuple(Told(rank, call_messages.ExchangeValue(1, 0, "tree/1", rank, "v" * 8000)) for rank in range(400))
    sent = payloads(Reported("j", CallReport("n", 2, told)))
    assert len(sent) > 1
    assert all(map(_fits, sent))
    assert [word for payload in sent for word in _told_in(decode(payload))] == list(told)
    assert payloads(Alive()) == [encode(Alive())]
    assert payloads(Ordered("j", WindDown("r"))) == [encode(Ordered("j", WindDown("r")))]
