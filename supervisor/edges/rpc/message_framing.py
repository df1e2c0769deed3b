"""How do the messages of a call travel in the data of an HTTP/2 stream, as far as its window permits?

Both sides of a connection share this. Nothing here does I/O.
"""

from __future__ import annotations

from typing import Protocol

from h2.connection import H2Connection

from supervisor.edges.rpc.statuses import CallError, MessageTooLargeError, Status

PREFIX_BYTES = 5  # before each message: a flag for compression and four bytes of length


class Stream(Protocol):
    """The bytes of a connection; see SocketStream."""

    async def receive(self) -> bytes: ...

    async def send(self, data: bytes) -> bool: ...


class Messages:
    """The messages of one call that have arrived."""

    def __init__(self, what: str, message_bytes_max: int) -> None:
        """`what`: the request, or the answer, as errors name it."""
        self._what = what
        self._message_bytes_max = message_bytes_max
        self._received = bytearray()
        self.unacknowledged_bytes = 0  # the peer may not send as much again yet

    def take(self, data: bytes, flow_bytes: int) -> None:
        """Takes data. The flow control of HTTP/2 bounds how much is not acknowledged."""
        self._received += data
        self.unacknowledged_bytes += flow_bytes

    def next(self) -> bytes | None:
        """Returns the next message, None if it has not arrived. Raises CallError if it can't be read."""
        if len(self._received) < PREFIX_BYTES:
            return None
        if self._received[0]:
            raise CallError(Status.UNIMPLEMENTED, f"cannot read the {self._what}: it is compressed; send it as it is")
        length = int.from_bytes(self._received[1:PREFIX_BYTES])
        if length > self._message_bytes_max:
            raise MessageTooLargeError(
                Status.RESOURCE_EXHAUSTED,
                f"cannot read the {self._what}: it has {length} bytes, and {self._message_bytes_max} are allowed",
            )
        end = PREFIX_BYTES + length
        if len(self._received) < end:
            return None
        message = bytes(self._received[PREFIX_BYTES:end])
        del self._received[:end]
        return message

    def check_end(self) -> None:
        """Raises CallError if the last message is cut off."""
        if self._received:
            raise CallError(Status.INTERNAL, f"cannot read the {self._what}: it is cut off")


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4) + message


def send_part(http2: H2Connection, number: int, data: memoryview) -> memoryview:
    """Sends what fits into the window and into one frame; returns the rest. Raises H2Error if the stream has ended."""
    room = min(http2.local_flow_control_window(number), http2.max_outbound_frame_size)
    if room > 0:
        http2.send_data(number, bytes(data[:room]))
        return data[room:]
    return data
