"""On which sockets does a leader listen at its address?"""

from __future__ import annotations

import asyncio  # anyio has no callbacks
import errno
import socket

from supervisor.edges.machine.own_process.handed_socket import handed
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.name_lookup import look_up
from supervisor.edges.peers.transport.own_address import is_loopback, is_meant_as_loopback

BACKLOG = 4096


async def listen(address: PeerAddress, *, everywhere: bool = False) -> list[socket.socket] | None:
    """Listens. Returns None if the address is another node's, or another process leads there.

    Listens at all addresses of a name. If this host knows the name by a loopback address, the name means this host, but
    other nodes know it by another address: so it listens at all addresses of this host, as with `everywhere`.
    """
    try:
        found = await _addresses(address.host, address.port)
        is_here = all(is_loopback(str(each[1][0])) for each in found) and not is_meant_as_loopback(address.host)
        if is_here or everywhere:
            found = await _addresses(None, address.port)
    except socket.gaierror:
        return None  # a name that this host can't resolve (yet) is another node's
    listeners: list[socket.socket] = []
    try:
        for family, where in found:
            if (listener := _listen_at(family, where)) is not None:
                listeners.append(listener)
    except OSError as error:
        for listener in listeners:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return listeners or None


async def hold_accepted(line: asyncio.Protocol, sock: socket.socket) -> None:
    """Gives the connection to the line, or closes it. Raises OSError."""
    await handed(sock, asyncio.get_running_loop().connect_accepted_socket(lambda: line, sock))


def listen_beside(host: str) -> tuple[socket.socket, int]:
    """Listens at a free port of one address of this host. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener, int(listener.getsockname()[1])


Where = tuple[str, int] | tuple[str, int, int, int]


async def _addresses(host: str | None, port: int) -> list[tuple[socket.AddressFamily, Where]]:
    found = await look_up(host, port, kind=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((each[0], each[4]) for each in found))


def _listen_at(family: socket.AddressFamily, where: Where) -> socket.socket | None:
    """Returns None if this host lacks the address or has its family disabled."""
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return None
        raise
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return listener
