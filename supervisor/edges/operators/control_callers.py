"""Which process made a call of the control API?"""

from __future__ import annotations

import socket
from contextvars import ContextVar

from supervisor.edges.machine.processes.peer_credentials import Peer
from supervisor.edges.machine.processes.peer_identity import Limits, limits_of_peer

CLIENT: ContextVar[socket.socket | None] = ContextVar("CLIENT", default=None)  # of the current call; None: over TCP


def limits_of_caller() -> Limits:
    """Returns the limits of the process that makes the call. Raises OSError if they are unknown."""
    client = CLIENT.get()
    if client is None:
        raise ProcessLookupError("it does not call from this node")
    return limits_of_peer(client)


def is_root() -> bool:
    """Returns whether root makes the call, on this node. Raises OSError if the kernel does not say who does."""
    client = CLIENT.get()
    return client is not None and Peer.of(client).uid == 0
