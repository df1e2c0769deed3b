"""How do bytes get from one non-blocking socket to another?

Without anyio's streams: if bytes arrive in the same turn of the loop that cancels them, they print an
InvalidStateError.
"""

from __future__ import annotations

import contextlib
import socket

import anyio

PASSED_BYTES_MAX = 64 * 1024  # held per connection and direction


async def copy(source: socket.socket, target: socket.socket) -> None:
    """Copies until `source` ends, and passes that end on, or until one side breaks, which ends both directions."""
    with contextlib.suppress(OSError):
        while data := await _receive(source):
            await _send(target, data)
        target.shutdown(socket.SHUT_WR)


async def _receive(source: socket.socket) -> bytes:
    while True:
        await anyio.wait_readable(source)
        try:
            return source.recv(PASSED_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            continue


async def _send(target: socket.socket, data: bytes) -> None:
    unsent = memoryview(data)
    while unsent:
        try:
            unsent = unsent[target.send(unsent) :]
        except (BlockingIOError, InterruptedError):
            await anyio.wait_writable(target)
