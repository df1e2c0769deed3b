"""How does a connection to an HTTP interface speak, how long may its client take, and what becomes of it at the end?

uvicorn speaks HTTP. It bounds neither the number of connections nor the time that a request takes, and its
`limit_concurrency` refuses the owner, too, as soon as another user holds that many.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import anyio
import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from supervisor.edges.operators.http_connection_limit import Place, Places

if TYPE_CHECKING:
    from starlette.types import ASGIApp

ABORT_S = 1.0  # until the event loop has closed what was aborted


class Connections:
    """All connections of one server."""

    def __init__(self, app: ASGIApp, places: Places, request_s: float) -> None:
        """`request_s`: see http_server.serve."""
        self.request_s = request_s
        self.places = places
        self.state = ServerState()
        self.state.default_headers = [(b"cache-control", b"no-store")]
        self.lost: anyio.Event | None = None
        self.config = uvicorn.Config(
            app, http=H11Protocol, ws="none", lifespan="off", interface="asgi3", workers=1,
            log_config=None, log_level="error",  # Whatever a stranger sends, nothing of it is shown.
            access_log=False, proxy_headers=False,  # A local program must not tell us another address than its own.
            timeout_keep_alive=math.ceil(request_s),
        )  # fmt: skip

    def made(self) -> Connection:
        return Connection(self)

    async def end(self, last_answers_s: float) -> None:
        """Closes idle connections at once, and the others once their answer is complete, or its time is over."""
        for each in tuple(self.state.connections):
            each.shutdown()
        await self._all_lost(last_answers_s)
        for each in tuple(self.state.connections):
            each.transport.abort()
        await self._all_lost(ABORT_S)

    async def _all_lost(self, within_s: float) -> None:
        with anyio.move_on_after(within_s):
            while self.state.connections:
                self.lost = anyio.Event()
                await self.lost.wait()


class Connection(H11Protocol):
    """Ends unless the client sends each request in time."""

    def __init__(self, every: Connections) -> None:
        super().__init__(every.config, every.state, {})
        self.place: Place | None = None
        self._every = every
        self._limit: asyncio.TimerHandle | None = None
        self._socket: asyncio.Transport | None = None
        self._is_over = False

    def abort(self) -> None:
        self._is_over = True
        if self._socket is not None:
            self._socket.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._socket = transport
        self._await_request()
        if self._is_over:
            transport.abort()

    def handle_events(self) -> None:
        super().handle_events()
        is_whole = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if self.place is not None and is_whole and self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):
            self._every.places.answer(self.place)
            self._end_wait()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response("cannot read the request: it is not valid HTTP\n")
        else:
            self.abort()  # The request is already answered, and its rest is malformed.

    def on_response_complete(self) -> None:
        if self.place is not None:
            self._every.places.wait(self.place)
        self._await_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_wait()
        if self.place is not None:
            self._every.places.leave(self.place)
        if self._every.lost is not None:
            self._every.lost.set()

    def _await_request(self) -> None:
        self._end_wait()
        self._limit = self.loop.call_later(self._every.request_s, self.abort)

    def _end_wait(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
