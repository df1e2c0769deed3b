"""Which addresses does a host name have? Asked in a thread of ours.

The event loop's own lookup starts libuv's threads, which abort the process where no thread can be started
(see supervisor/edges/machine/own_process/threads.py). An address needs no thread at all.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TypeAlias

from supervisor.edges.machine.own_process.threads import in_thread

Found: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]]


async def look_up(host: str | None, port: int, *, kind: socket.SocketKind, flags: int = 0) -> list[Found]:
    """Returns what socket.getaddrinfo returns. Raises socket.gaierror, or OSError if there is no thread left."""
    ask = partial(socket.getaddrinfo, host, port, type=kind)
    try:
        found = ask(flags=flags | socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await in_thread(partial(ask, flags=flags), abandon_on_cancel=True)
    return [(family, of_kind, protocol, name, _where(address)) for family, of_kind, protocol, name, address in found]


def _where(address: tuple[object, ...]) -> tuple[str, int] | tuple[str, int, int, int]:
    host, port, *rest = address
    where = (str(host), int(str(port)))
    return where if not rest else (*where, int(str(rest[0])), int(str(rest[1])))
