"""How does the sender of a node receive the output of the node's log processes?

It gets a listening socket that outlives it, so that a log process can connect at once, even while a dead sender is
being replaced.
"""

from __future__ import annotations

import logging
import socket

from supervisor.edges.machine.own_process import accepting
from supervisor.edges.machine.processes.peer_credentials import Peer
from supervisor.edges.peers.transport import leader_listener
from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.programs.log_service.log_receiving import LogReceiver

_log = logging.getLogger("holdfast.logs")


async def take_connections(listening_fd: int, receiver: LogReceiver) -> None:
    """Takes connections until cancelled."""
    listener = socket.socket(fileno=listening_fd)
    listener.setblocking(False)
    async for accepted in accepting.connections(listener):
        if not Peer.of(accepted).is_this_user:  # The socket's folder keeps others out, too.
            accepted.close()
            continue
        line = Line()
        try:
            await leader_listener.hold_accepted(line, accepted)
        except OSError as error:
            _log.warning("a log process is not connected: %s; it tries again", error)
        else:
            receiver.hold(line)
