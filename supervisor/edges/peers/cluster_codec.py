"""What do the bytes of the cluster stream mean? Only this package's codecs know protobuf.

Everything from a peer is checked for shape and bounds (record_codec.py). A frame, order or report that only a newer
version knows is Unknown and can be skipped. Protobuf is loaded with the first frame: a job on one node never needs it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast, get_args

from holdfast_wire.framing import CLUSTER_FRAME_BYTES_MAX, FrameTooLongError

from supervisor.edges.peers import frame_sizes
from supervisor.edges.peers.cluster_frames import ClusterProtocolError, Frame, Unknown
from supervisor.edges.peers.record_codec import Read, UnknownKindError, Write, union_shape

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from holdfast_wire.v1 import cluster_pb2


class _Codec(NamedTuple):
    new_frame: type[cluster_pb2.ClusterFrame]
    write: Write
    read: Read
    decode_error: type[Exception]


@cache
def _codec() -> _Codec:
    from google.protobuf.message import DecodeError
    from holdfast_wire.v1 import cluster_pb2

    descriptor = cast("Descriptor", cluster_pb2.ClusterFrame.DESCRIPTOR)
    write, read = union_shape(get_args(Frame), descriptor)
    return _Codec(cluster_pb2.ClusterFrame, write, read, DecodeError)


def encode(frame: Frame) -> bytes:
    """Returns the payload for a frame of at most CLUSTER_FRAME_BYTES_MAX.

    Longer evidence loses its least unusual stacks, with a note; a longer order to a wrapped call becomes a refusal of
    the call. Raises FrameTooLongError for a CallReport, which `payloads` sends in parts.
    """
    payload = _payload(frame)
    if len(payload) <= CLUSTER_FRAME_BYTES_MAX:
        return payload
    payload = _payload(frame_sizes.shortened(frame, CLUSTER_FRAME_BYTES_MAX, _measure))
    if len(payload) > CLUSTER_FRAME_BYTES_MAX:
        raise FrameTooLongError(len(payload), CLUSTER_FRAME_BYTES_MAX)
    return payload


def payloads(frame: Frame) -> list[bytes]:
    """Does the same as `encode`, but splits a CallReport that is too long for one frame into several, in order."""
    try:
        return [encode(frame)]
    except FrameTooLongError:
        return [payload for part in frame_sizes.halves(frame) for payload in payloads(part)]


def _payload(frame: Frame) -> bytes:
    codec = _codec()
    return codec.new_frame(**codec.write(frame)).SerializeToString()


def _measure(frame: Frame) -> int:
    return len(_payload(frame))


def decode(payload: bytes) -> Frame:
    """Decodes a payload. Raises ClusterProtocolError, and nothing else."""
    codec = _codec()
    message = codec.new_frame()
    try:
        message.ParseFromString(payload)
    except (codec.decode_error, ValueError) as error:
        raise ClusterProtocolError(f"cannot read a frame of {len(payload)} bytes: {error}") from error
    try:
        return cast("Frame", codec.read(message))
    except UnknownKindError:
        return Unknown()
