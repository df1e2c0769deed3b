"""How is a byte stream cut into messages? A frame is a 4-byte big-endian length, then that many bytes.

Sans-I/O: `Decoder` takes bytes and returns whole messages. The worker channel, the spawner link and the cluster
stream use it, each with its own limit.
"""

from __future__ import annotations

import struct

WORKER_FRAME_BYTES_MAX = 64 * 1024  # from a worker
SUPERVISOR_FRAME_BYTES_MAX = 1024 * 1024  # to a worker: the values that all ranks exchange come in one frame
SPAWNER_FRAME_BYTES_MAX = 4 * 1024 * 1024
CLUSTER_FRAME_BYTES_MAX = 1024 * 1024  # between the nodes of a job

_HEADER = struct.Struct(">I")
HEADER_BYTES = _HEADER.size


class FrameTooLongError(ValueError):
    """Raised when a frame's length is above the limit of its channel; the connection can't be used any more."""

    def __init__(self, frame_bytes: int, frame_bytes_max: int) -> None:
        super().__init__(f"cannot take a frame of {frame_bytes} bytes: the limit of this channel is {frame_bytes_max}")
        self.frame_bytes = frame_bytes
        self.frame_bytes_max = frame_bytes_max


def encode(payload: bytes, *, frame_bytes_max: int) -> bytes:
    """Returns the frame that carries `payload`. Raises FrameTooLongError above the limit."""
    if len(payload) > frame_bytes_max:
        raise FrameTooLongError(len(payload), frame_bytes_max)
    return _HEADER.pack(len(payload)) + payload


class Decoder:
    """Cuts a byte stream, however it is chunked, into messages. Holds at most one frame and the last chunk."""

    def __init__(self, *, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of an unfinished frame. Above zero at the end of a stream, the peer was cut off."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the messages that `data` completes, in order. Raises FrameTooLongError at the header."""
        buffer = self._buffer
        if not buffer and len(data) >= HEADER_BYTES:
            (frame_bytes,) = _HEADER.unpack_from(data)
            if frame_bytes + HEADER_BYTES == len(data) and frame_bytes <= self._frame_bytes_max:
                return [bytes(data[HEADER_BYTES:])]  # Nearly always, a chunk is exactly one message.
        buffer += data
        messages: list[bytes] = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            (frame_bytes,) = _HEADER.unpack_from(buffer, start)
            if frame_bytes > self._frame_bytes_max:
                raise FrameTooLongError(frame_bytes, self._frame_bytes_max)
            end = start + HEADER_BYTES + frame_bytes
            if len(buffer) < end:
                break
            messages.append(bytes(buffer[start + HEADER_BYTES : end]))
            start = end
        if start:
            del buffer[:start]
        return messages
