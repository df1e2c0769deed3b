"""At which address do the other nodes of a job reach this one?"""

from __future__ import annotations

import ipaddress
import socket

from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.name_lookup import look_up
from supervisor.errors import ConfigurationError

# Documentation addresses: routed by default, used by nobody. A datagram socket that "connects" sends nothing.
_SOMEWHERE = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}


async def own_address(endpoint: PeerAddress) -> str:
    """Returns the address in the endpoint's network. A name that resolves to loopback here does not show it.

    A name that nobody knows yet shows nothing: its node may start later. Then it is the address towards others.
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
    try:
        return _source(family, _SOMEWHERE[socket.AddressFamily(family)])
    except OSError:
        return source  # there is no route: other nodes could not be reached either


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
