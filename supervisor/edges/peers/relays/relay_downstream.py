"""Which nodes reach their leader through one relay, and which of them has that relay heard?

This is the leader's side. Each node has its own line, whose bytes the relay carries. The nodes' heartbeats end at the
relay, which reports the nodes that it heard and passes on the leader's acknowledgement. So two heartbeats replace
hundreds.
"""

from __future__ import annotations

import asyncio  # anyio has no callbacks
import struct
from collections.abc import Callable

from supervisor.edges.peers.codec.cluster_frames import ClusterProtocolError
from supervisor.edges.peers.relays.multiplexer import ChannelTransport, Kind, Multiplexer
from supervisor.edges.peers.transport.cluster_line import Line

CHANNELS_MAX = 4096
TICK = struct.Struct(">I")


class RelayDownstream:
    def __init__(
        self,
        line: Line,
        *,
        make_line: Callable[[], Line],
        on_joined: Callable[[], None],
        on_left: Callable[[], None],
        on_end: Callable[[str], None],
        may_answer: Callable[[], bool] | None = None,
    ) -> None:
        """`make_line` makes the line of a new node before its first message. `may_answer`: see ClusterServer."""
        self._may_answer = may_answer
        self._loop = asyncio.get_running_loop()
        self._lines: dict[int, Line] = {}
        self._make_line = make_line
        self._on_joined = on_joined
        self._on_left = on_left
        self._on_end = on_end
        self._multiplexer = Multiplexer(
            line,
            on_part=self._take,
            on_end=self._ended,
            on_full=self._pause,
            on_writable=self._resume,
        )

    @property
    def line(self) -> Line:
        """Returns the connection to the relay."""
        return self._multiplexer.line

    def end(self, why: str) -> None:
        self._multiplexer.line.end(why, says_all=True)

    def _take(self, kind: Kind, channel: int, data: bytes) -> None:
        line = self._lines.get(channel)
        match kind:
            case Kind.OPEN:
                if line is not None or len(self._lines) >= CHANNELS_MAX:
                    raise ClusterProtocolError("cannot take a node from a relay: its channel is taken")
                line = self._lines[channel] = self._make_line()
                line.connection_made(ChannelTransport(self._multiplexer, channel))
                self._on_joined()
            case Kind.DATA:
                if line is not None and not line.ended:
                    line.data_received(data)
            case Kind.CLOSE:
                if line is not None:
                    del self._lines[channel]
                    self._on_left()
                    line.connection_lost(None)
            case Kind.BEAT:
                self._hear_beats(data)

    def _hear_beats(self, data: bytes) -> None:
        if len(data) < TICK.size or len(data) % 4:
            raise ClusterProtocolError("cannot read the heartbeats of a relay")
        now_s, lines = self._loop.time(), self._lines
        for channel in struct.unpack_from(f">{len(data) // 4 - 1}I", data, TICK.size):
            if channel in lines:
                lines[channel].heard_at_s = now_s
        if self._may_answer is None or self._may_answer():
            self._multiplexer.put(Kind.BEAT, 0, data[: TICK.size])

    def _pause(self) -> None:
        for line in self._lines.values():
            line.pause_writing()

    def _resume(self) -> None:
        for line in list(self._lines.values()):
            line.resume_writing()

    def _ended(self, why: str) -> None:
        lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            self._on_left()
            line.end(f"its relay is lost: {why}")
        self._on_end(why)
