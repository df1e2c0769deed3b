"""What answer does a peer get that may not call, or can't be answered? A gRPC refusal with its reason.

A stranger must not be able to load the control API or send it a single byte. If memory for the control API is missing,
there may be none for this answer either: then the connection just ends, and the supervisor's own log has the reason.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import anyio

from supervisor.edges.machine.processes.socket_stream import SocketStream
from supervisor.errors import HoldfastError

if TYPE_CHECKING:
    from supervisor.edges.rpc.grpc_connection import Call

TIMEOUT_S = 5.0
BYTES_MAX = 256 * 1024  # read from one peer
CALLS_MAX = 4  # of one peer: the commands of ours make one
READ_BYTES_MAX = 1024  # a turn of the loop: one that opens and resets calls in 26 bytes would cost it 0.1 s otherwise


async def refuse(client: socket.socket, refusal: HoldfastError) -> None:
    """Answers each of its calls with `refusal`, for at most TIMEOUT_S. Never raises because of the peer."""
    try:
        from supervisor.edges.operators.control_encoding import code_of, refusal_to_wire  # Late: refusals are rare.
        from supervisor.edges.rpc.grpc_connection import GrpcConnection, Places
        from supervisor.edges.rpc.statuses import CallError
    except (ImportError, MemoryError, OSError):
        return

    peer = _FewCalls(client)

    async def refused(_: Call) -> None:
        peer.calls_left -= 1
        raise CallError(code_of(refusal), str(refusal), refusal_to_wire(refusal))

    with anyio.move_on_after(TIMEOUT_S):
        await GrpcConnection(peer, {}, Places(1), message_bytes_max=0, otherwise=refused).run()


class _FewCalls(SocketStream):
    """Ends after BYTES_MAX, or after CALLS_MAX."""

    _read_bytes_max = READ_BYTES_MAX
    _left = BYTES_MAX
    calls_left = CALLS_MAX

    async def receive(self) -> bytes:
        data = await super().receive() if self._left > 0 and self.calls_left > 0 else b""
        self._left -= len(data)
        return data
