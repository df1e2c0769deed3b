"""Under which address do the other nodes of a job reach this one?"""

from __future__ import annotations

import ipaddress
import socket

import anyio

from supervisor.edges.peers.cluster_link import PeerAddress

# Addresses of documentation: routed by default, reached by nobody. A datagram socket that "connects" sends nothing.
_SOMEWHERE = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}


async def own_address(endpoint: PeerAddress) -> str:
    """In the network of the endpoint. A host name that means this host by its loopback address says nothing of it."""
    found = await anyio.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)
    family, _, _, _, address = found[0]
    source = _source(family, address)
    if not is_loopback(source) or is_meant_as_loopback(endpoint.host):
        return source
    try:
        return _source(family, _SOMEWHERE[socket.AddressFamily(family)])
    except OSError:
        return source  # There is no route: no other node could be reached either.


def address_towards_others() -> str:
    """From which this host connects to any other; "" without a route."""
    try:
        return _source(socket.AF_INET, _SOMEWHERE[socket.AF_INET])
    except OSError:
        return ""


def is_meant_as_loopback(host: str) -> bool:
    """Whether whoever wrote it cannot mean another machine."""
    return host == "localhost" or is_loopback(host)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _source(family: int, address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
