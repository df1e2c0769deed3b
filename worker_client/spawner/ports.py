"""On which port is a store served, and which process holds one that is taken?

A script opens further stores at MASTER_PORT + 1, + 2 + iteration…, so the neighbouring ports must be free too. The
kernel must not give one of them to a client, so all are outside ip_local_port_range, unless a range is given.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress

NEIGHBOURS = 64
_PORT_MIN = 1024
_PORT_MAX = 65535
_ATTEMPTS_MAX = 200
_BACKLOG = 4096  # the kernel cuts it to net.core.somaxconn


class NoPortError(OSError):
    """Raised when no store can be served at the wanted place; the text is the sentence for people."""


def listen(host: str, port: int, within: range | None = None) -> tuple[int, int]:
    """Returns (descriptor of a listening socket, its port); port 0: any, of `within` if given. Raises NoPortError."""
    if port:
        return _listen_at(host, port), port
    reason = "every port tried was taken"
    for candidate in _candidates() if within is None else _blocks(within):
        if not _neighbours_free(candidate, are_scarce=within is not None):
            continue
        try:
            return _listen_at(host, candidate), candidate
        except NoPortError as error:
            reason = str(error)
            if error.errno != errno.EADDRINUSE:
                raise
    if within is not None:
        raise NoPortError(
            f"cannot serve a store on {host}: no {NEIGHBOURS + 1} neighbouring ports of {within[0]}-{within[-1]} are "
            f"free (room for {len(_blocks(within))} stores); end other jobs of this node, or widen --store-ports"
        )
    raise NoPortError(f"cannot serve a store on {host}: {reason}; free some ports outside ip_local_port_range")


def choose(host: str, within: range | None = None) -> int:
    """Returns a port that is free now, for a rank that serves the store itself. Raises NoPortError."""
    fd, port = listen(host, 0, within)
    os.close(fd)
    return port


def holders(port: int) -> list[int]:
    """Returns the processes with a listening socket on `port`, as far as this user may see."""
    inodes = _listening_inodes(port)
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # Gone, or another user's.
            for fd in os.listdir(f"/proc/{name}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{name}/fd/{fd}") in inodes:
                        found.append(int(name))
                        break
    return found


def _candidates() -> list[int]:
    low, high = _local_port_range()
    outside = _blocks(range(_PORT_MIN, low), range(high + 1, _PORT_MAX + 1))
    # Clients may get the whole range: then any port is as good as another.
    return (outside or _blocks(range(_PORT_MIN, _PORT_MAX + 1)))[:_ATTEMPTS_MAX]


def _blocks(*spans: range) -> list[int]:
    """Returns the first port of each block that a store may have, beginning anywhere.

    Blocks of two jobs do not overlap: neither gets a port that the other's script opens later. And stores leave no gaps
    that are too short for another one, as they would at random.
    """
    starts = [port for span in spans for port in span[: -NEIGHBOURS or None : NEIGHBOURS + 1]]
    at = int.from_bytes(os.urandom(4), "big") % max(1, len(starts))
    return starts[at:] + starts[:at]


def _local_port_range() -> tuple[int, int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="utf-8") as file:
            low, high = file.read().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999  # the kernel's own default


def _neighbours_free(port: int, *, are_scarce: bool) -> bool:
    is_dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual else socket.AF_INET
    for each in range(port, port + NEIGHBOURS + 1):
        try:
            probe = socket.SocketType(family)  # without the wrapper of socket.socket: a restart waits for all of them
        except OSError:
            return False
        try:
            if are_scarce:  # A connection that has ended keeps its port for a minute otherwise.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_dual:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("", each))
        except OSError:
            return False
        finally:
            probe.close()
    return True


def _listen_at(host: str, port: int) -> int:
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if port > _PORT_MAX:  # The C library would take what is left of it in 16 bits.
        raise NoPortError(
            errno.EINVAL, f"cannot serve a store on {place}: ports end at {_PORT_MAX}; check --master-port"
        )
    try:
        # As bytes: a str host would go through the idna codec and load it under the user's script.
        family, kind, _, _, address = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind | socket.SOCK_CLOEXEC)
    except OSError as error:
        raise NoPortError(
            error.errno, f"cannot serve a store on {place}: {error.strerror}; check --master-addr"
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise NoPortError(error.errno, f"cannot serve a store on {place}: {_why(error, port)}") from error
    return listener.detach()


def _why(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        pids = ", ".join(f"{pid} ({_name_of(pid)})" for pid in holders(port))
        return f"the port is held by {'pid ' + pids if pids else 'a process of another user'}; choose another or use 0"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address; check --master-addr"
    return f"{error.strerror}; choose another port or use 0"


def _name_of(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return "gone"


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table, encoding="utf-8") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    return inodes
