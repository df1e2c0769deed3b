"""At which address do the other nodes of a job reach this one?"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import suppress

import anyio

from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.name_lookup import look_up
from supervisor.errors import ConfigurationError

DNS_TIMEOUT_S = 2.0  # without an answer by then, the address of the default route is used
RESOLV_CONF = "/etc/resolv.conf"
# Documentation addresses: routed by default, used by nobody. A datagram socket that "connects" sends nothing.
_SOMEWHERE = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}


async def own_address(endpoint: PeerAddress) -> str:
    """Returns the address in the endpoint's network.

    A name that resolves to loopback here means this host: DNS may have the address by which the others know it. A name
    that nobody knows yet shows nothing: its node may start later. Then it is the address towards others.
    """
    try:
        found = await look_up(endpoint.host, endpoint.port, kind=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        if not (towards := address_towards_others()):
            why = f"{(error.strerror or str(error)).lower()}, and there is no route to other hosts"
            raise ConfigurationError(
                f"cannot find this node's address towards {endpoint}: {why}; give --local-addr"
            ) from error
        return towards
    family, _, _, _, address = found[0]
    source = _source(family, address)
    if not is_loopback(source) or is_meant_as_loopback(endpoint.host):
        return source
    with suppress(OSError), anyio.move_on_after(DNS_TIMEOUT_S):
        if in_dns := await _own_in_dns(endpoint):
            return in_dns
    try:
        return _source(family, _SOMEWHERE[socket.AddressFamily(family)])
    except OSError:
        return source  # there is no route: other nodes could not be reached either


async def _own_in_dns(endpoint: PeerAddress) -> str:
    """Returns this host's address by that name in DNS; "" if it has none there.

    Debian's /etc/hosts has the host's own name as 127.0.1.1. A name with a dot at its end is absolute, and so not in
    that file. Raises OSError if there is no thread to ask from.
    """
    found = await look_up(endpoint.host, endpoint.port, kind=socket.SOCK_DGRAM, flags=socket.AI_CANONNAME)
    names = [found[0][3] or endpoint.host, endpoint.host, *(f"{endpoint.host}.{each}" for each in _search_domains())]
    for name in dict.fromkeys(f"{each.rstrip('.')}." for each in names):
        with suppress(OSError, UnicodeError):  # DNS does not know it.
            for family, _, _, _, address in await look_up(name, endpoint.port, kind=socket.SOCK_DGRAM):
                if not is_loopback(address[0]) and _is_own(family, address):
                    return address[0]
    return ""


def _search_domains() -> Iterator[str]:
    """Yields where the resolver looks for short names."""
    with suppress(OSError), open(RESOLV_CONF, encoding="utf-8", errors="replace") as file:
        for word, *domains in filter(None, map(str.split, file)):
            if word in ("search", "domain"):
                yield from domains


def _is_own(family: int, address: tuple[str, int] | tuple[str, int, int, int]) -> bool:
    """Returns whether this host has the address: then it connects to it from the same one."""
    try:
        return _source(family, address) == address[0]
    except OSError:
        return False


def address_towards_others() -> str:
    """Returns the address from which this host connects to others; "" without a route."""
    try:
        return _source(socket.AF_INET, _SOMEWHERE[socket.AF_INET])
    except OSError:
        return ""


def is_meant_as_loopback(host: str) -> bool:
    """Returns whether the name can't mean another machine."""
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
