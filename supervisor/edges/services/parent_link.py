"""How do a service and the supervisor that started it communicate?

Over a socket that the service inherits: the service reports where it serves, and ends when the socket does.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import anyio

READ_BYTES = 4096
LINE_BYTES_MAX = 1024


class ParentLink:
    """The service's side."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor and keeps it from processes that the service starts."""
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._socket.setblocking(False)

    def say_where(self, host: str, port: int) -> None:
        self._socket.send(f"{host} {port}\n".encode())

    async def await_end(self, on_end: Callable[[], None]) -> None:
        """Calls `on_end` once the supervisor is gone."""
        while True:
            await anyio.wait_readable(self._socket)
            try:
                received = self._socket.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                received = b""
            if not received:
                self._socket.close()
                on_end()
                return


async def where_it_serves(own: socket.socket) -> tuple[str, int] | None:
    """Returns the reported address, on the supervisor's side; None if the service ended or sent nonsense."""
    line = b""
    while b"\n" not in line and len(line) < LINE_BYTES_MAX:
        await anyio.wait_readable(own)
        try:
            received = own.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            continue
        except OSError:
            return None
        if not received:
            return None
        line += received
    host, _, port = line.decode(errors="replace").partition("\n")[0].rpartition(" ")
    return (host, int(port)) if host and port.isdecimal() else None
