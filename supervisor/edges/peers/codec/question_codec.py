"""How are questions between nodes, and their answers, encoded? All data from a peer is checked, as orders are."""

from __future__ import annotations

from functools import cache
from typing import cast, get_args

from supervisor.edges.codec.message_codec import MessageCodec
from supervisor.edges.codec.scalars import UnknownKindError
from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.codec.cluster_stream_bounds import STREAM
from supervisor.ports.questions import Answer, Question


@cache
def _questions() -> MessageCodec:
    from holdfast_wire.v1 import cluster_pb2

    return MessageCodec(get_args(Question), cluster_pb2.Question, STREAM)


@cache
def _answers() -> MessageCodec:
    from holdfast_wire.v1 import cluster_pb2

    return MessageCodec(get_args(Answer), cluster_pb2.Answer, STREAM)


def encode_question(question: Question) -> bytes:
    return _questions().encode(question)


def encode_answer(answer: Answer) -> bytes:
    return _answers().encode(answer)


def decode_question(payload: bytes) -> Question:
    """Decodes a question. Raises only ClusterProtocolError; also for a question that only a newer version knows."""
    return cast("Question", _decode(_questions(), payload))


def decode_answer(payload: bytes) -> Answer:
    """Decodes an answer. Raises only ClusterProtocolError; also for an answer that only a newer version knows."""
    return cast("Answer", _decode(_answers(), payload))


def _decode(codec: MessageCodec, payload: bytes) -> object:
    try:
        return codec.decode(payload)
    except UnknownKindError as error:
        raise ClusterProtocolError(str(error)) from None
