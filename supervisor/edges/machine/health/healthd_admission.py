"""Who may connect to the health service, how many at a time, and which user made a call?

The kernel says who connects, and each user has a number of places. A connection loses its place if no call follows:
users who fill their places with connections that ask nothing keep nobody out but themselves.
"""

from __future__ import annotations

import math
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import anyio

from supervisor.edges.machine.own_process import accepting
from supervisor.edges.machine.processes.connection_rate_limit import ConnectionRateLimit
from supervisor.edges.machine.processes.peer_identity import uid_of

SOCKET_MODE = 0o666
BACKLOG = 4_096  # the kernel may reduce it to net.core.somaxconn
CONNECTIONS_MAX = 256
CONNECTIONS_OF_ONE_MAX = 16
IDLE_S = 10.0  # without a call


Serve = Callable[[socket.socket], Awaitable[None]]


class _Connection:
    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.calls = 0
        self.scope = anyio.CancelScope()


class HealthdAdmission:
    """Listens for a server."""

    def __init__(self, listener: socket.socket, login_of: Callable[[int], int]) -> None:
        """`login_of`: see Logins.of. A login and its subordinate user ids are one user here."""
        self._listener = listener
        self._login_of = login_of
        self._rate_limit = ConnectionRateLimit()
        self._connections: list[_Connection] = []  # the oldest first
        self._of_user: Counter[int] = Counter()
        self._by_client: dict[socket.socket, _Connection] = {}

    @contextmanager
    def calling(self, client: socket.socket) -> Generator[int]:
        """Yields the user who calls; the connection keeps its place meanwhile. Raises LookupError if it has ended."""
        connection = self._by_client[client]
        connection.calls += 1
        connection.scope.deadline = math.inf
        try:
            yield connection.uid
        finally:
            connection.calls -= 1
            if not connection.calls:
                connection.scope.deadline = anyio.current_time() + IDLE_S

    async def run(self, serve: Serve) -> None:
        """Serves each connection that has a place, until cancelled."""
        async with anyio.create_task_group() as tasks:
            async for client in accepting.connections(self._listener):
                connection = self._admitted(client)
                if connection is None:
                    client.close()
                else:
                    tasks.start_soon(self._serve, client, connection, serve)

    def _admitted(self, client: socket.socket) -> _Connection | None:
        """Gives the connection a place, if its user may have one more."""
        try:
            uid = self._login_of(uid_of(client))
        except OSError:
            return None
        if self._of_user[uid] >= CONNECTIONS_OF_ONE_MAX or not self._rate_limit.allows(uid, anyio.current_time()):
            return None
        if len(self._connections) >= CONNECTIONS_MAX and not self._made_room(uid):
            return None
        connection = _Connection(uid)
        connection.scope.deadline = anyio.current_time() + IDLE_S
        self._connections.append(connection)
        self._of_user[uid] += 1
        return connection

    def _made_room(self, uid: int) -> bool:
        """Ends the newest connection without a call of the user who has most, if that is more than `uid` has."""
        idle = [each for each in self._connections if not each.calls]
        most = max((self._of_user[each.uid] for each in idle), default=0)
        if most <= self._of_user[uid]:
            return False
        newest = next(each for each in reversed(idle) if self._of_user[each.uid] == most)
        self._forget(newest)
        newest.scope.cancel()
        return True

    def _forget(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._of_user[connection.uid] -= 1
            if not self._of_user[connection.uid]:
                del self._of_user[connection.uid]

    async def _serve(self, client: socket.socket, connection: _Connection, serve: Serve) -> None:
        self._by_client[client] = connection
        try:
            with client, connection.scope:
                await serve(client)
        finally:
            del self._by_client[client]
            self._forget(connection)
