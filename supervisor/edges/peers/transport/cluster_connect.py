"""How is the leader reached even if large packets are lost on the way?

Between two nodes, packets above some size may be dropped without notice to the sender, by a tunnel or a misconfigured
switch. TCP resends such a packet repeatedly, and all later data waits behind it. If a connection went silent, the next
ones use small segments in both directions, which arrive.
"""

from __future__ import annotations

import asyncio  # anyio can't set options before it connects
import errno
import os
import socket
from collections.abc import Callable

import anyio

from supervisor.edges.machine.own_process.handed_socket import handed
from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.edges.peers.transport.name_lookup import look_up

NEXT_AFTER_S = 1.5  # without an answer of one address; the kernel repeats a lost packet after 1 s
SEGMENT_BYTES_SMALL = 512  # IPv4 carries packets of 576 bytes everywhere


REFUSED = os.strerror(errno.ECONNREFUSED).lower()  # nobody listens there


def reason_of(error: OSError) -> str:
    """Returns the kernel's reason without its number, such as "connection refused". anyio may wrap several attempts."""
    told = error
    if isinstance(error.__cause__, ExceptionGroup):
        told = next((each for each in error.__cause__.exceptions if isinstance(each, OSError)), error)  # pyright: ignore
    elif isinstance(error.__cause__, OSError):
        told = error.__cause__
    by_kernel = os.strerror(told.errno) if told.errno and told.errno > 0 else ""  # asyncio's text contains the address
    return (by_kernel or told.strerror or str(told)).lower()


async def connect(line: Callable[[], Line], host: str, port: int, *, is_careful: bool) -> None:
    """Connects, with small segments if `is_careful`. Raises OSError."""
    loop = asyncio.get_running_loop()
    sock = await _connected(loop, host, port, is_careful=is_careful)
    await handed(sock, loop.create_connection(line, sock=sock))


async def _connected(loop: asyncio.AbstractEventLoop, host: str, port: int, *, is_careful: bool) -> socket.socket:
    """Connects to the first address of the host that answers. Waits for the last one without a limit of its own."""
    error = OSError(f"{host} has no address")
    found = await look_up(host, port, kind=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(found, 1):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            if is_careful:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES_SMALL)  # The peer learns it.
            with anyio.fail_after(NEXT_AFTER_S if number < len(found) else None):
                await loop.sock_connect(sock, address)
        except OSError as refused:
            sock.close()
            error = refused
        except BaseException:  # cancelled: raised again
            sock.close()
            raise
        else:
            return sock
    raise error
