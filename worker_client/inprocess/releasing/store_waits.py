"""How is a rank released if it waits for a TCPStore inside C++, although torch has no way to abort that?

The abort shuts down this process's client connections to TCPStores: whatever waits in one fails at once. Such a
connection meets five conditions: it was opened in this iteration, by this side, to MASTER_ADDR (the iteration's or the
launcher's), at a port used for the job's stores, and with torch's socket options. A store that this process serves
continues for the others, and connections from before the iteration stay untouched.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator
from time import monotonic
from typing import NamedTuple

from worker_client.bounded_threads import BoundedThread, join_all
from worker_client.inprocess.releasing import foreign_sockets

PORTS = 64  # from MASTER_PORT on; `holdfast run` has checked that they are free
LOOKUP_TIMEOUT_S = 1.0  # for MASTER_ADDR's name; the first restart waits for it
LOOKUP_AGAIN_S = 2.0  # after the beginning of a look-up that has failed


class Place(NamedTuple):
    """Where a store may be expected."""

    address: str
    port: int


class _Iteration(NamedTuple):
    """What must be known about the running iteration."""

    number: int
    ports: tuple[int, ...]  # first ports of the launcher's and the iteration's stores
    before: set[int]  # inodes of the sockets that are not this iteration's
    launchers_host: str  # MASTER_ADDR as launched


class _Lookup:
    """Looks up a name in the background. Only the first attempt is waited for, and logged."""

    def __init__(self, host: str) -> None:
        self.addresses: set[bytes] = set()
        self._host = host
        self._begin()
        join_all([self._thread], LOOKUP_TIMEOUT_S)

    def repeat_if_failed(self) -> None:
        is_due = monotonic() >= self._begun_at_s + LOOKUP_AGAIN_S
        if is_due and self._thread.join(0) and not self.addresses:
            self._begin()

    def _begin(self) -> None:
        self._begun_at_s = monotonic()
        self._thread = BoundedThread(f"look up MASTER_ADDR={self._host}", self._run)
        self._thread.start()

    def _run(self) -> None:
        for *_, address in socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM):
            packed = foreign_sockets.packed(str(address[0]))
            if packed is not None:
                self.addresses.add(packed)


_present: _Iteration | None = None
_lookups: dict[str, _Lookup] = {}


def begin_iteration(number: int, *ports: str | None, launchers_host: str = "") -> None:
    """Marks all sockets open now as not ours to shut down. The job's stores may begin at `ports`, given as text."""
    global _present
    numbers = tuple(int(port) for port in ports if port and port.isdecimal())
    _present = _Iteration(number, numbers, set(foreign_sockets.socket_inodes().values()), launchers_host)


def end_call() -> None:
    """Ends the call. Outside of a call, nothing is shut down."""
    global _present
    _present = None


@contextlib.contextmanager
def kept() -> Generator[None]:
    """Lets connections opened in the block outlive the iteration."""
    already = set(foreign_sockets.socket_inodes().values())
    try:
        yield
    finally:
        if _present is not None:
            _present.before.update(set(foreign_sockets.socket_inodes().values()) - already)


def shut_down_store_connections() -> int:
    """Shuts down this iteration's connections to stores; returns how many. 0 outside of a call. Never raises.

    Blocks briefly only if MASTER_ADDR is a name that was never looked up.
    """
    present = _present
    if present is None:
        return 0
    opened = foreign_sockets.socket_inodes()
    served = _served_ports(opened)
    addresses, ports = _hosts(present), _first_ports(present)
    count = 0
    for descriptor, inode in opened.items():
        if inode in present.before:
            continue
        with foreign_sockets.borrowed(descriptor, inode) as own:
            if own is None or not _is_made_as_torch_does(own) or foreign_sockets.own_port(own) in served:
                continue
            server = foreign_sockets.peer(own)
            if server is None or server.address not in addresses:
                continue
            if any(_is_a_stores(server.port - port, present.number) for port in ports):
                count += foreign_sockets.shut_down(own)
    return count


def expected() -> list[Place]:
    """Returns where the iteration's stores are usually expected; nothing outside of a call."""
    present = _present
    if present is None:
        return []
    ports = {port + more for port in _first_ports(present) for more in (0, 1, 2 + present.number)}
    return [Place(foreign_sockets.shown(address), port) for address in _hosts(present) for port in sorted(ports)]


def _hosts(present: _Iteration) -> set[bytes]:
    hosts = dict.fromkeys((os.environ.get("MASTER_ADDR", ""), present.launchers_host))
    return {address for host in hosts for address in _addresses(host)}


def _first_ports(present: _Iteration) -> set[int]:
    master_port = os.environ.get("MASTER_PORT", "")
    return {*present.ports, *([int(master_port)] if master_port.isdecimal() else [])}


def _is_a_stores(distance: int, iteration: int) -> bool:
    """Returns whether a store may be at MASTER_PORT + `distance`: scripts use + 0, + 1 or + 2 + iteration."""
    return 0 <= distance < PORTS or 0 <= distance - iteration < PORTS


def _is_made_as_torch_does(descriptor: int) -> bool:
    """Returns whether it blocks and sends without delay. Sockets of event loops, gRPC and timeouts never block."""
    return (
        os.get_blocking(descriptor) and foreign_sockets.option(descriptor, socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    )


def _served_ports(opened: dict[int, int]) -> set[int | None]:
    """Returns the ports that this process serves; a connection from one of them belongs to a server, not a client."""
    ports: set[int | None] = set()
    for descriptor, inode in opened.items():
        with foreign_sockets.borrowed(descriptor, inode) as own:
            if own is not None and foreign_sockets.listens(own):
                ports.add(foreign_sockets.own_port(own))
    return ports


def _addresses(host: str) -> set[bytes]:
    """Returns the addresses of MASTER_ADDR; none if the lookup takes too long or has failed."""
    numeric = foreign_sockets.packed(host)
    if numeric is not None:
        return {numeric}
    if not host:
        return set()
    if host in _lookups:
        _lookups[host].repeat_if_failed()
    else:
        _lookups[host] = _Lookup(host)
    return set(_lookups[host].addresses)
