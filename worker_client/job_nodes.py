"""According to the launcher, how many ranks are on this node and elsewhere, and where do the others reach it?"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from worker_client.guarded_log import GuardedLog

NO_RANK = str(None)  # RANK as a rank sees it that the Wrapper keeps in reserve
ANY_PORT = 9  # Connecting a datagram socket sends nothing.

log = GuardedLog("holdfast.inprocess")


def world_size(environment: Mapping[str, str]) -> int:
    return number(environment, "WORLD_SIZE", 1)


def local_world_size(environment: Mapping[str, str]) -> int:
    nodes = number(environment, "SLURM_NNODES", 1)
    return number(environment, "LOCAL_WORLD_SIZE", max(1, world_size(environment) // nodes))


def has_other_nodes(environment: Mapping[str, str]) -> bool:
    """Returns whether some ranks of the job are on another node."""
    return world_size(environment) > local_world_size(environment)


def node_rank(environment: Mapping[str, str]) -> int:
    """Returns this node's rank; launchers give each node consecutive ranks."""
    rank = environment.get("RANK", "")
    return int(rank) // local_world_size(environment) if rank.isdecimal() else 0


def node_count(environment: Mapping[str, str]) -> int:
    return world_size(environment) // local_world_size(environment)


def own_address(master_addr: str) -> str:
    """Returns this node's address in the network of `master_addr`; "" if that is this node, or can't be looked up."""
    try:
        found = socket.getaddrinfo(master_addr, ANY_PORT, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, target = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            own = str(probe.getsockname()[0])
    except OSError as error:
        log.warning("cannot find this node's address in the network of MASTER_ADDR=%s: %s", master_addr, error)
        return ""
    return "" if own == target[0] or own == "::1" or own.startswith("127.") else own


def number(environment: Mapping[str, str], name: str, default: int) -> int:
    """Returns the variable's value; the default if it is missing, 0 or not a number."""
    text = environment.get(name, "")
    return int(text) if text.isdecimal() and int(text) else default
