"""How does the sender of a node receive the output of the node's log processes?

It gets a listening socket that outlives it, so that a log process can connect at once, even while a dead sender is
being replaced.
"""

from __future__ import annotations

import logging
import os
import socket
import struct

import anyio

from supervisor.edges.peers.transport import listening
from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.programs.log_service.links import Links

_CREDENTIALS = struct.Struct("iII")

_log = logging.getLogger("holdfast.logs")


async def take_connections(listening_fd: int, links: Links) -> None:
    """Takes connections until cancelled."""
    listener = socket.socket(fileno=listening_fd)
    listener.setblocking(False)
    while True:
        await anyio.wait_readable(listener)
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            continue
        if not _is_own(accepted):
            accepted.close()
            continue
        accepted.setblocking(False)
        line = Line()
        try:
            await listening.hold_accepted(line, accepted)
        except OSError as error:
            _log.warning("a log process is not connected: %s; it tries again", error)
        else:
            links.hold(line)


def _is_own(accepted: socket.socket) -> bool:
    """Returns whether the peer is our own user; the socket's folder keeps others out, too."""
    _, uid, _ = _CREDENTIALS.unpack(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return uid in (os.getuid(), 0)
