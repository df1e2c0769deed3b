"""Who closes a socket that the event loop has made a connection of?

The loop does. But uvloop notes only at the end of the call which socket object the descriptor belongs to. If the
connection ends before that, or the call is cancelled, the descriptor is closed and the object does not know it: once it
is collected, it would close that number again, which may be another file's by then.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable


async def handed(sock: socket.socket, made: Awaitable[tuple[asyncio.BaseTransport, object]]) -> None:
    """Waits for the connection that the loop makes of this socket. Raises OSError; the socket is then closed."""
    is_uvloop = not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
    try:
        transport, _ = await made
    except BaseException:  # Whatever the error is, nothing stays open; it is raised again.
        if is_uvloop:
            sock.detach()
        else:
            sock.close()
        raise
    if is_uvloop and transport.is_closing():
        sock.detach()
