"""How do many connections share one, and why does an error in one of them leave the others alone?

A multiplexer carries parts: bytes of a channel, its beginning and end, and heartbeats. Parts of one turn of the event
loop go out in one piece. Bytes of a channel are those of a separate connection. TLS protects each hop, not the channel:
a relay is a node of the job, which knows the token or has a certificate like both ends of the channel.
"""

from __future__ import annotations

import asyncio  # anyio has no callbacks
import enum
import struct
from collections.abc import Callable

from holdfast_wire.framing import CLUSTER_FRAME_BYTES_MAX

from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.transport.cluster_line import Line

PART_BYTES_MAX = CLUSTER_FRAME_BYTES_MAX // 2
_PART = struct.Struct(">BII")  # kind, channel, length


class Kind(enum.IntEnum):
    OPEN = 1
    DATA = 2
    CLOSE = 3
    BEAT = 4


OnPart = Callable[[Kind, int, bytes], None]  # may raise ClusterProtocolError


def _nothing() -> None:
    """Does nothing."""


class Multiplexer:
    """A multiplexer over a line whose sides have authenticated each other."""

    def __init__(
        self,
        line: Line,
        *,
        on_part: OnPart,
        on_end: Callable[[str], None],
        on_full: Callable[[], None] = _nothing,
        on_writable: Callable[[], None] = _nothing,
    ) -> None:
        """`on_full`: the other side reads more slowly than this one writes; `on_writable`: it has caught up."""
        self.line = line
        self._loop = asyncio.get_running_loop()
        self._on_part = on_part
        self._on_full = on_full
        self._parts: list[bytes] = []
        self._bytes = 0
        line.listen(self._hear, on_end, on_writable)

    def put(self, kind: Kind, channel: int, data: bytes = b"") -> None:
        """Adds a part. Never blocks."""
        for at in range(0, len(data) or 1, PART_BYTES_MAX):
            part = data[at : at + PART_BYTES_MAX]
            if self._bytes + len(part) > PART_BYTES_MAX:
                self.flush()
            if not self._parts:
                self._loop.call_soon(self.flush)
            self._parts.append(_PART.pack(kind, channel, len(part)) + part)
            self._bytes += len(part)

    def flush(self) -> None:
        if self._parts:
            payload = b"".join(self._parts)
            self._parts.clear()
            self._bytes = 0
            self.line.send(payload)
            if not self.line.is_writable:
                self._on_full()

    def _hear(self, payload: bytes) -> None:
        at = 0
        while at < len(payload):
            if len(payload) - at < _PART.size:
                raise ClusterProtocolError("cannot read a multiplexer: its last part is cut")
            kind, channel, length = _PART.unpack_from(payload, at)
            at += _PART.size + length
            if at > len(payload):
                raise ClusterProtocolError("cannot read a multiplexer: its last part is cut")
            if kind in _KINDS:  # a newer version may send others
                self._on_part(_KINDS[kind], channel, payload[at - length : at])


_KINDS = {kind.value: kind for kind in Kind}


class ChannelTransport(asyncio.Transport):
    """The transport below a line that goes through a multiplexer."""

    def __init__(self, multiplexer: Multiplexer, channel: int, *, on_closed: Callable[[], None] = _nothing) -> None:
        super().__init__({"peername": multiplexer.line.peer})
        self._multiplexer = multiplexer
        self._channel = channel
        self._on_closed = on_closed
        self._is_open = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_open:
            self._multiplexer.put(Kind.DATA, self._channel, bytes(data))

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._multiplexer.put(Kind.CLOSE, self._channel)
            self._on_closed()

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        """Does nothing: the data of one multiplexer is already here."""

    def resume_reading(self) -> None:
        """Does nothing: it never paused."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Does nothing: the multiplexer's line has the limits."""
