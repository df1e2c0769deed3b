"""Which process is behind a call of the control API? The gate knows it, gRPC does not.

The gate binds each of its connections to the server to a name that the kernel chooses; gRPC tells that name as the
peer of the call.
"""

from __future__ import annotations

import socket
from contextvars import ContextVar

from supervisor.edges.machine.processes.peer_identity import Limits, limits_of_peer

CALL: ContextVar[str] = ContextVar("CALL", default="")  # of the call that is answered: its peer, as gRPC names it


class Callers:
    """The clients of one supervisor that are connected now."""

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
        """Those of the process that makes the call. Raises OSError where they are not known."""
        client = self._clients.get(CALL.get())
        if client is None:
            raise ProcessLookupError("it does not call from this node")
        return limits_of_peer(client)
