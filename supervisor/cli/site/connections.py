"""Which connections does the web page's server keep, and for how long without a request?

uvicorn bounds neither connections nor the time that the head of a request takes, and its `limit_concurrency` refuses
the owner, too, as soon as another user holds that many. So connections are accepted here.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import anyio
import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from supervisor.edges.machine.own_process import accepting
from supervisor.edges.machine.own_process.handed_socket import handed
from supervisor.edges.machine.processes.connection_rate_limit import ConnectionRateLimit
from supervisor.edges.operators.http_places import Place, Places

CONNECTIONS_MAX = 256
BACKLOG = 4_096  # the kernel may reduce it to net.core.somaxconn
HEAD_S = 10.0  # from the beginning of the connection, or the end of an answer


class Connections:
    """Accepts connections for a server that uvicorn runs without a socket."""

    def __init__(self, listener: socket.socket, server: uvicorn.Server, login_of: Callable[[int], int]) -> None:
        """`login_of`: see Logins.of."""
        self._listener = listener
        self._server = server
        self._places = Places(CONNECTIONS_MAX, login_of)
        self._rate_limit = ConnectionRateLimit()

    async def run(self) -> None:
        """Accepts until cancelled."""
        async for client in accepting.connections(self._listener):
            connection = self._admitted(client)
            if connection is None:
                client.close()
                continue
            loop = asyncio.get_running_loop()
            await handed(client, loop.connect_accepted_socket(lambda made=connection: made, client))

    def _admitted(self, client: socket.socket) -> Connection | None:
        """Gives the connection a place. Other users of this machine get so many per second, however fast they ask."""
        try:
            source = self._places.source(client.getpeername(), client.getsockname())
        except OSError:
            return None  # The client has gone.
        is_own = source == os.geteuid()
        if isinstance(source, int) and not is_own and not self._rate_limit.allows(source, anyio.current_time()):
            return None
        connection = Connection(self._server, self._places)
        connection.place = self._places.enter(source, connection.abort)
        return connection if connection.place is not None else None


class Connection(H11Protocol):
    """Ends unless the client sends a whole head in time."""

    def __init__(self, server: uvicorn.Server, places: Places) -> None:
        super().__init__(server.config, server.server_state, {})
        self.place: Place | None = None
        self._places = places
        self._head_limit: asyncio.TimerHandle | None = None
        self._socket: asyncio.Transport | None = None
        self._is_over = False

    def abort(self) -> None:
        self._is_over = True
        if self._socket is not None:
            self._socket.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._socket = transport
        self._await_head()
        if self._is_over:
            transport.abort()

    def handle_events(self) -> None:
        super().handle_events()
        if self.place is not None and self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self._places.answer(self.place)
            self._end_wait()

    def on_response_complete(self) -> None:
        if self.place is not None:
            self._places.wait(self.place)
        self._await_head()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_wait()
        if self.place is not None:
            self._places.leave(self.place)

    def _await_head(self) -> None:
        self._end_wait()
        self._head_limit = self.loop.call_later(HEAD_S, self.abort)

    def _end_wait(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None
