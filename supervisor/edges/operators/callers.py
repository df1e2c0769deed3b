"""Which process made a call of the control API? The gate knows; gRPC does not.

The gate binds each of its connections to the server to a name that the kernel chooses; gRPC reports that name as the
peer of the call.
"""

from __future__ import annotations

import socket
from contextvars import ContextVar

from supervisor.edges.machine.processes.peer_identity import Limits, limits_of_peer

CALL: ContextVar[str] = ContextVar("CALL", default="")  # the peer of the current call, as gRPC names it


class Callers:
    """The clients that are connected to one supervisor now."""

    def __init__(self) -> None:
        self._clients: dict[str, socket.socket] = {}

    def enter(self, inner: socket.socket, client: socket.socket) -> str:
        """Names the connection to the server. Raises OSError."""
        inner.bind("")
        name = f"unix-abstract:{inner.getsockname()[1:].decode()}"
        self._clients[name] = client
        return name

    def leave(self, name: str) -> None:
        self._clients.pop(name, None)

    def limits(self) -> Limits:
        """Returns the limits of the process that makes the call. Raises OSError if they are unknown."""
        client = self._clients.get(CALL.get())
        if client is None:
            raise ProcessLookupError("it does not call from this node")
        return limits_of_peer(client)
