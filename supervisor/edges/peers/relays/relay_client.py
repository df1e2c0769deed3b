"""How does a node reach its leader through a relay? This is the node's side of its connection to that relay."""

from __future__ import annotations

import asyncio  # anyio has no callbacks
from collections.abc import Callable

from supervisor.edges.peers.relays.multiplexer import ChannelTransport, Kind, Multiplexer
from supervisor.edges.peers.transport.cluster_line import Line


class RelayClient:
    """The connection to a relay. `line` is the connection to the leader through it. The relay gets the heartbeats."""

    def __init__(self, outer: Line, *, on_beat: Callable[[bytes], None]) -> None:
        """`on_beat` gets the heartbeats that the leader has acknowledged."""
        self._loop = asyncio.get_running_loop()
        self._outer = outer
        self._on_beat = on_beat
        self.line = Line()
        self._multiplexer = Multiplexer(outer, on_part=self._take, on_end=self._ended)
        self.line.connection_made(ChannelTransport(self._multiplexer, 0, on_closed=self._close))

    def beat(self, heartbeat: bytes) -> None:
        self._multiplexer.put(Kind.BEAT, 0, heartbeat)

    def _take(self, kind: Kind, channel: int, data: bytes) -> None:
        del channel  # there is only one
        if kind is Kind.DATA:
            self.line.data_received(data)
        elif kind is Kind.BEAT:
            self.line.heard_at_s = self._loop.time()
            self._on_beat(data)

    def _ended(self, why: str) -> None:
        self.line.end(f"the relay is lost: {why}")

    def _close(self) -> None:
        """Closes later: the line ends for its own reason."""
        self._multiplexer.flush()
        self._loop.call_soon(lambda: self._outer.end("the connection by the relay has ended", says_all=True))
