"""How are questions between nodes, and their answers, encoded? All data from a peer is checked, as orders are."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast, get_args

from supervisor.edges.peers.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.record_codec import Read, UnknownKindError, Write, union_shape
from supervisor.ports.questions import Answer, Question

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message


class _Codec(NamedTuple):
    new: type[Message]
    write: Write
    read: Read


@cache
def _codec(of_answers: bool) -> _Codec:
    from holdfast_wire.v1 import cluster_pb2

    message = cluster_pb2.Answer if of_answers else cluster_pb2.Question
    kinds = get_args(Answer) if of_answers else get_args(Question)
    return _Codec(message, *union_shape(kinds, cast("Descriptor", message.DESCRIPTOR)))


def encode_question(question: Question) -> bytes:
    return _encode(_codec(of_answers=False), question)


def encode_answer(answer: Answer) -> bytes:
    return _encode(_codec(of_answers=True), answer)


def decode_question(payload: bytes) -> Question:
    """Decodes a question. Raises only ClusterProtocolError; also for a question that only a newer version knows."""
    return cast("Question", _decode(_codec(of_answers=False), payload))


def decode_answer(payload: bytes) -> Answer:
    """Decodes an answer. Raises only ClusterProtocolError; also for an answer that only a newer version knows."""
    return cast("Answer", _decode(_codec(of_answers=True), payload))


def _encode(codec: _Codec, record: object) -> bytes:
    return codec.new(**codec.write(record)).SerializeToString()


def _decode(codec: _Codec, payload: bytes) -> object:
    from google.protobuf.message import DecodeError

    message = codec.new()
    try:
        message.ParseFromString(payload)
        return codec.read(message)
    except ClusterProtocolError:
        raise
    except (DecodeError, ValueError) as error:
        raise ClusterProtocolError(f"cannot read {len(payload)} bytes: {error}") from error
    except UnknownKindError:
        raise ClusterProtocolError(f"this version has no {codec.new.__name__} of that kind") from None
