"""Which users' processes may take part in a log server without token and certificates, on a loopback address?

Those of one user, and root's. gRPC makes and accepts the connections, so this asks for the caller's socket, and for the
one that listens.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from urllib.parse import unquote

from supervisor.edges.machine.processes.tcp_user import refusal_of_user, stranger_at, stranger_listening_at
from supervisor.edges.peers.cluster_session import SessionError

_LOCALHOST = {4: "127.0.0.1", 6: "::1"}


def check_caller(peer: str, address: str) -> None:
    """Checks who has called us at our address. `peer`: as gRPC names it. Raises SessionError."""
    kind, _, where = peer.partition(":")
    host, port = _split(address)
    own_host = _LOCALHOST[6 if kind == "ipv6" else 4] if host == "localhost" else host
    try:
        whose = stranger_at(_split(unquote(where)), (own_host, port))
    except (OSError, ValueError) as error:
        raise SessionError(f"whose process it is cannot be seen: {error}") from error
    if whose:
        raise SessionError(refusal_of_user(whose))


def check_called(address: str) -> None:
    """Checks who listens where we call; ask before and after. Raises SessionError."""
    host, port = _split(address)
    hosts = list(_LOCALHOST.values()) if host == "localhost" else [host]
    for each in hosts:
        with suppress(ValueError):
            ipaddress.ip_address(each)
            if whose := stranger_listening_at(each, port):
                raise SessionError(refusal_of_user(whose))


def _split(address: str) -> tuple[str, int]:
    """Raises ValueError."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
