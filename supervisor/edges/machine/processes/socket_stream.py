"""How are bytes read from a socket and written to it in the event loop, where either side may go at any moment?

Without anyio's streams: if bytes arrive in the same turn of the loop that cancels them, they print an
InvalidStateError.
"""

from __future__ import annotations

import socket

import anyio

READ_BYTES_MAX = 16 * 1024  # a turn of the loop takes no more from one peer


class SocketStream:
    """A connected socket that does not block. The caller closes it."""

    _read_bytes_max = READ_BYTES_MAX

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    async def receive(self) -> bytes:
        """Returns what has arrived; b"" once the peer has ended or lost the connection."""
        while True:
            await anyio.wait_readable(self._peer)
            try:
                return self._peer.recv(self._read_bytes_max)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                return b""

    async def send(self, data: bytes) -> bool:
        """Returns False if the peer can't be reached any more."""
        unsent = memoryview(data)
        while unsent:
            try:
                unsent = unsent[self._peer.send(unsent) :]
            except (BlockingIOError, InterruptedError):
                await anyio.wait_writable(self._peer)
            except OSError:
                return False
        return True
