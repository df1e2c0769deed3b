"""What do the bytes of the cluster stream mean? Only this package's codecs know protobuf.

Everything from a peer is checked for shape and bounds (edges/codec). A frame, order or report that only a newer
version knows is Unknown and can be skipped; so is one with such a word, unless the word has a substitute. Protobuf is
loaded with the first frame: a job on one node never needs it.
"""

from __future__ import annotations

from functools import cache
from typing import cast, get_args

from holdfast_wire.framing import CLUSTER_FRAME_BYTES_MAX, FrameTooLongError

from supervisor.edges.codec.message_codec import MessageCodec
from supervisor.edges.codec.scalars import UnknownKindError
from supervisor.edges.peers.codec import frame_sizes
from supervisor.edges.peers.codec.cluster_frames import Frame, Unknown
from supervisor.edges.peers.codec.cluster_stream_bounds import STREAM


@cache
def _codec() -> MessageCodec:
    from holdfast_wire.v1 import cluster_pb2

    return MessageCodec(get_args(Frame), cluster_pb2.ClusterFrame, STREAM)


def encode(frame: Frame) -> bytes:
    """Returns the payload for a frame of at most CLUSTER_FRAME_BYTES_MAX.

    Longer evidence loses its least unusual stacks, with a note; a longer order to a wrapped call becomes a refusal of
    the call. Raises FrameTooLongError for a CallReport, which `payloads` sends in parts.
    """
    payload = _codec().encode(frame)
    if len(payload) <= CLUSTER_FRAME_BYTES_MAX:
        return payload
    payload = _codec().encode(frame_sizes.shortened(frame, CLUSTER_FRAME_BYTES_MAX, _measure))
    if len(payload) > CLUSTER_FRAME_BYTES_MAX:
        raise FrameTooLongError(len(payload), CLUSTER_FRAME_BYTES_MAX)
    return payload


def payloads(frame: Frame) -> list[bytes]:
    """Does the same as `encode`, but splits a CallReport that is too long for one frame into several, in order."""
    try:
        return [encode(frame)]
    except FrameTooLongError:
        return [payload for part in frame_sizes.halves(frame) for payload in payloads(part)]


def _measure(frame: Frame) -> int:
    return len(_codec().encode(frame))


def decode(payload: bytes) -> Frame:
    """Decodes a payload. Raises ClusterProtocolError, and nothing else."""
    try:
        return cast("Frame", _codec().decode(payload))
    except UnknownKindError:
        return Unknown()
