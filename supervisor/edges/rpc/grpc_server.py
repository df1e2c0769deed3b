"""How does a service answer many connections, and end them all?"""

from __future__ import annotations

import socket
from collections.abc import Mapping

import anyio

from supervisor.edges.rpc.grpc_connection import STREAMS_PER_CONNECTION_MAX, GrpcConnection, Handler, Places
from supervisor.edges.rpc.message_framing import Stream


class GrpcServer:
    """Answers calls with `handlers`, by path. At most `calls_max` are in progress on all connections together."""

    def __init__(
        self,
        handlers: Mapping[bytes, Handler],
        *,
        calls_max: int,
        message_bytes_max: int,
        streams_max: int = STREAMS_PER_CONNECTION_MAX,
    ) -> None:
        self._handlers = handlers
        self._places = Places(calls_max)
        self._message_bytes_max = message_bytes_max
        self._streams_max = streams_max
        self._connections: set[GrpcConnection] = set()
        self._has_ended = False
        self._gone = anyio.Event()  # a connection has ended

    async def serve(self, stream: Stream, client: socket.socket | None = None) -> None:
        """Answers a client until it leaves, or until a moment after `end`. `client`: its socket, if on this node."""
        if self._has_ended:
            return
        connection = GrpcConnection(
            stream,
            self._handlers,
            self._places,
            message_bytes_max=self._message_bytes_max,
            streams_max=self._streams_max,
            client=client,
        )
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._gone.set()

    def end(self) -> None:
        """Ends all connections: calls in flight have a moment."""
        self._has_ended = True
        for connection in self._connections:
            connection.end()

    async def until_gone(self) -> None:
        """Returns once all connections have ended."""
        while self._connections:
            self._gone = anyio.Event()
            await self._gone.wait()
