"""How is a rank released if it waits for a TCPStore inside C++, although torch has no way to abort that?

By ending the connections that this process has to TCPStores as a client: what waits in one fails at once. They are
known by five things together: opened in this iteration, by this side, to MASTER_ADDR (the iteration's or the
launcher's), at a port where the job's stores are, and made as torch makes them. A store that this process serves goes
on for the others, and a connection from before the iteration is none of its business.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator
from typing import NamedTuple

from worker_client.bounded_threads import BoundedThread, join_all
from worker_client.inprocess.releasing import raw_sockets

PORTS = 64  # from MASTER_PORT on; `holdfast run` has found these free
LOOKUP_TIMEOUT_S = 1.0  # of MASTER_ADDR's name; the restart waits for it


class _Iteration(NamedTuple):
    """All that has to be known of the iteration that runs."""

    number: int
    ports: tuple[int, ...]  # at which the launcher's stores and those of the iteration begin
    before: set[int]  # inodes of the sockets that are not this iteration's
    launchers_host: str  # MASTER_ADDR as launched


class _Lookup:
    """Looks up a name in the background. Asked once per name: one that hangs is not waited for again."""

    def __init__(self, host: str) -> None:
        self.addresses: set[bytes] = set()
        self._host = host
        self._thread = BoundedThread(f"look up MASTER_ADDR={host}", self._run)
        self._thread.start()
        join_all([self._thread], LOOKUP_TIMEOUT_S)

    def _run(self) -> None:
        for *_, address in socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM):
            packed = raw_sockets.packed(str(address[0]))
            if packed is not None:
                self.addresses.add(packed)


_present: _Iteration | None = None
_lookups: dict[str, _Lookup] = {}


def begin_iteration(number: int, *ports: str | None, launchers_host: str = "") -> None:
    """Marks all sockets that are open now as not ours to end. The job's stores may begin at `ports`, given as text."""
    global _present
    numbers = tuple(int(port) for port in ports if port and port.isdecimal())
    _present = _Iteration(number, numbers, set(raw_sockets.socket_inodes().values()), launchers_host)


def end_call() -> None:
    """Ends the call: outside of one nothing is shut down."""
    global _present
    _present = None


@contextlib.contextmanager
def kept() -> Generator[None]:
    """Lets what is opened in the block outlive the iteration."""
    already = set(raw_sockets.socket_inodes().values())
    try:
        yield
    finally:
        if _present is not None:
            _present.before.update(set(raw_sockets.socket_inodes().values()) - already)


def shut_down_store_connections() -> int:
    """Ends this iteration's connections to stores; returns how many. 0 outside of a call. Never raises.

    Blocks only where MASTER_ADDR is a name that no lookup has told yet, for a moment.
    """
    present = _present
    if present is None:
        return 0
    opened = raw_sockets.socket_inodes()
    served = _served_ports(opened)
    hosts = dict.fromkeys((os.environ.get("MASTER_ADDR", ""), present.launchers_host))
    addresses = {address for host in hosts for address in _addresses(host)}
    master_port = os.environ.get("MASTER_PORT", "")
    ports = {*present.ports, *([int(master_port)] if master_port.isdecimal() else [])}
    count = 0
    for descriptor, inode in opened.items():
        if inode in present.before:
            continue
        with raw_sockets.borrowed(descriptor, inode) as own:
            if own is None or not _is_made_as_torch_does(own) or raw_sockets.own_port(own) in served:
                continue
            server = raw_sockets.peer(own)
            if server is None or server.address not in addresses:
                continue
            if any(_is_a_stores(server.port - port, present.number) for port in ports):
                count += raw_sockets.shut_down(own)
    return count


def _is_a_stores(distance: int, iteration: int) -> bool:
    """Scripts use MASTER_PORT, + 1, + 2 + iteration, or the like."""
    return 0 <= distance < PORTS or 0 <= distance - iteration < PORTS


def _is_made_as_torch_does(descriptor: int) -> bool:
    """It blocks, and sends without delay. What event loops, gRPC, and timeouts in Python are made of never blocks."""
    return os.get_blocking(descriptor) and raw_sockets.option(descriptor, socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def _served_ports(opened: dict[int, int]) -> set[int | None]:
    """A connection from one of these is a server's, however it looks: clients get a port of their own."""
    ports: set[int | None] = set()
    for descriptor, inode in opened.items():
        with raw_sockets.borrowed(descriptor, inode) as own:
            if own is not None and raw_sockets.listens(own):
                ports.add(raw_sockets.own_port(own))
    return ports


def _addresses(host: str) -> set[bytes]:
    """Returns the addresses of MASTER_ADDR; none if the lookup does not end soon."""
    numeric = raw_sockets.packed(host)
    if numeric is not None:
        return {numeric}
    if host and host not in _lookups:
        _lookups[host] = _Lookup(host)
    return set(_lookups[host].addresses) if host else set()
