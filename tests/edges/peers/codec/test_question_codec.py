"""Does every question and answer mean the same on both nodes, and nothing if it is not from a peer?"""

from __future__ import annotations

from contextlib import suppress
from typing import get_args

import pytest
from holdfast_wire.v1 import cluster_pb2 as wire
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.edges.codec.record_codec import member_name
from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.codec.question_codec import decode_answer, decode_question, encode_answer, encode_question
from supervisor.ports.questions import Answer, Question
from tests.edges.peers import every_frame
from tests.edges.peers.every_frame import Kind

QUICK = settings(max_examples=8)


@pytest.mark.parametrize("kind", get_args(Question))
def test_every_question_arrives_as_it_was_asked(kind: Kind):
    @QUICK
    @given(every_frame.records(kind))
    def arrives(question: Question) -> None:
        assert decode_question(encode_question(question)) == question

    arrives()


@pytest.mark.parametrize("kind", get_args(Answer))
def test_every_answer_arrives_as_it_was_given(kind: Kind):
    @QUICK
    @given(every_frame.records(kind))
    def arrives(answer: Answer) -> None:
        assert decode_answer(encode_answer(answer)) == answer

    arrives()


def test_the_wire_and_the_supervisor_know_the_same_kinds():
    assert set(wire.Question.DESCRIPTOR.fields_by_name) == {member_name(kind) for kind in get_args(Question)}
    assert set(wire.Answer.DESCRIPTOR.fields_by_name) == {member_name(kind) for kind in get_args(Answer)}


@QUICK
@given(st.binary(max_size=200))
def test_whatever_bytes_come_only_one_kind_of_error_does(payload: bytes):
    with suppress(ClusterProtocolError):
        decode_question(payload)
    with suppress(ClusterProtocolError):
        decode_answer(payload)
