"""How is a web application served: at which addresses, and to which clients?

Connections are accepted here, since uvicorn bounds neither how many there are nor how long a request takes. It is
loaded with the first of them, and the application is made then: a supervisor that nobody queries saves their memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketAttribute, TaskStatus

from supervisor.edges.machine.own_process import accepting
from supervisor.edges.machine.own_process.handed_socket import handed
from supervisor.edges.machine.own_process.threads import in_thread_or_here
from supervisor.edges.machine.own_process.unix_listener import listening
from supervisor.edges.machine.processes.connection_rate_limit import ConnectionRateLimit
from supervisor.edges.operators.http_connection_limit import Places, Source, as_it_is
from supervisor.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from supervisor.edges.operators.http_connection import Connections

CONNECTIONS_MAX = 32
REQUEST_S = 30.0
BACKLOG = 4_096  # the kernel may reduce it to net.core.somaxconn

_log = logging.getLogger("holdfast")


async def listen(
    address: tuple[str, int] | None, path: Path | None = None, *, what: str, flag: str
) -> list[socket.socket]:
    """Listens at the TCP `address` and the Unix socket `path` that are given. Raises ConfigurationError."""
    listeners: list[socket.socket] = []
    if address is not None:
        host, port = address
        try:
            opened = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=BACKLOG)
        except OSError as error:
            raise ConfigurationError(
                f"cannot serve {what} at {host}:{port}: {error.strerror or error}; name another address with {flag}"
            ) from error
        listeners += [each.extra(SocketAttribute.raw_socket) for each in opened.listeners]
    if path is not None:
        with suppress(FileNotFoundError):
            os.unlink(path)
        listeners.append(listening(path, mode=0o600, backlog=BACKLOG))
    return listeners


async def serve(
    make_app: Callable[[], ASGIApp],
    listeners: Sequence[socket.socket],
    *,
    connections_max: int = CONNECTIONS_MAX,
    request_s: float = REQUEST_S,
    last_answers_s: float = 0.0,
    login_of: Callable[[int], int] = as_it_is,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Answers until cancelled. A client that is slow, silent or wrong affects only its own connection.

    `request_s`: from the beginning of a connection, or the end of an answer, to the end of the next request.
    `last_answers_s`: for answers that are under way when it is cancelled. `login_of`: see Places.
    """
    server = _Server(make_app, Places(connections_max, login_of), request_s)
    try:
        async with anyio.create_task_group() as tasks:
            for listener in listeners:
                tasks.start_soon(server.accept, listener)
            task_status.started()
    finally:
        for listener in listeners:
            listener.close()
        if server.connections is not None:
            with anyio.CancelScope(shield=True):
                await server.connections.end(last_answers_s)


class _Server:
    def __init__(self, make_app: Callable[[], ASGIApp], places: Places, request_s: float) -> None:
        self._make_app = make_app
        self._places = places
        self._request_s = request_s
        self._rate_limit = ConnectionRateLimit()
        self.connections: Connections | None = None

    async def accept(self, listener: socket.socket) -> None:
        """Accepts until cancelled."""
        async for client in accepting.connections(listener):
            with ExitStack() as closing:
                closing.enter_context(client)
                if (connections := await self._loaded()) is not None:
                    await self._meet(client, connections, closing)

    async def _loaded(self) -> Connections | None:
        """Returns None if the application or uvicorn can't be loaded: they may be replaced at this moment."""
        if self.connections is None:
            try:
                loaded = await in_thread_or_here(self._load)
            except Exception:  # noqa: BLE001 - the bulkhead: no request may end the process
                _log.warning("cannot answer over HTTP: see below; reinstall Holdfast", exc_info=True)
                return None
            self.connections = self.connections or loaded
        return self.connections

    def _load(self) -> Connections:
        from supervisor.edges.operators.http_connection import Connections

        return Connections(self._make_app(), self._places, self._request_s)

    async def _meet(self, client: socket.socket, connections: Connections, closing: ExitStack) -> None:
        try:
            source = self._source(client)
        except OSError:
            return  # The client has gone.
        if not self._is_in_time(source):
            return
        connection = connections.made()
        place = connection.place = self._places.enter(source, connection.abort)
        if place is None:
            return
        closing.pop_all()
        connect = asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client)
        try:
            await handed(client, connect)
        except OSError:
            self._places.leave(place)

    def _is_in_time(self, source: Source) -> bool:
        """Returns False if another user of this machine asks for too many connections per second."""
        if not isinstance(source, int) or source == os.geteuid():
            return True
        return self._rate_limit.allows(source, anyio.current_time())

    def _source(self, client: socket.socket) -> Source:
        if client.family == socket.AF_UNIX:
            return os.geteuid()  # `listen` opens it to nobody else.
        return self._places.source(client.getpeername(), client.getsockname())
