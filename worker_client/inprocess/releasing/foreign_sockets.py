"""How is a socket of other code inspected and shut down, without changing anything else about it?

Python's socket objects won't do: if a script has called socket.setdefaulttimeout(), merely creating one for a
descriptor sets O_NONBLOCK for all processes that share the connection.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import sys
from collections.abc import Generator
from functools import cache
from typing import NamedTuple

_ADDRESS_BYTES = 128  # sizeof(struct sockaddr_storage)
_SYN_SENT = 2  # TCP_SYN_SENT of include/net/tcp_states.h
_MAPPED = bytes(10) + b"\xff\xff"  # the prefix of an IPv4 address mapped to IPv6


class Endpoint(NamedTuple):
    address: bytes  # 4 bytes of IPv4, or 16 of IPv6; never a mapped one
    port: int
    scope: int = 0  # the interface of a link-local address


@contextlib.contextmanager
def borrowed(descriptor: int, inode: int) -> Generator[int | None]:
    """Yields our own descriptor of a TCP socket; None if it is not a TCP socket, or is a different one by now.

    Any thread may close the original number and reuse it at any time.
    """
    try:
        own = os.dup(descriptor)
    except OSError:
        yield None
        return
    try:
        status = os.fstat(own)
        is_same = stat.S_ISSOCK(status.st_mode) and status.st_ino == inode
        yield own if is_same and _is_tcp(own) else None
    finally:
        os.close(own)


def socket_inodes() -> dict[int, int]:
    """Returns descriptor → inode of all sockets that this process has open now; none if the kernel does not say."""
    found: dict[int, int] = {}
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:  # there is no such directory, or no descriptor left to read it with
        return found
    for name in names:
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found


def listens(descriptor: int) -> bool:
    """Returns whether the socket listens. Also True if the kernel does not say: such a socket is best left alone."""
    return option(descriptor, socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 0


def connects(descriptor: int) -> bool:
    """Returns whether the socket is being connected, to a peer that has not answered yet."""
    state = ctypes.c_uint8()  # tcpi_state, the first byte of struct tcp_info
    size = ctypes.c_uint32(ctypes.sizeof(state))
    level, name = socket.IPPROTO_TCP, socket.TCP_INFO
    failed = _libc().getsockopt(descriptor, level, name, ctypes.byref(state), ctypes.byref(size))
    return not failed and state.value == _SYN_SENT


def option(descriptor: int, level: int, name: int) -> int | None:
    value = ctypes.c_int()
    size = ctypes.c_uint32(ctypes.sizeof(value))
    failed = _libc().getsockopt(descriptor, level, name, ctypes.byref(value), ctypes.byref(size))
    return None if failed else value.value


def peer(descriptor: int) -> Endpoint | None:
    """Returns the socket's peer; None if it is not connected."""
    return _endpoint(descriptor, "getpeername")


def own_port(descriptor: int) -> int | None:
    own = _endpoint(descriptor, "getsockname")
    return None if own is None else own.port


def own_address(descriptor: int) -> tuple[str, int] | None:
    """Returns the socket's own address as text and port, to connect to."""
    own = _endpoint(descriptor, "getsockname")
    if own is None:
        return None
    return shown(own.address) + (f"%{own.scope}" if own.scope else ""), own.port


def shut_down(descriptor: int) -> bool:
    """Shuts the connection down for all that share it, so every waiting call returns. Returns whether there was one."""
    return _libc().shutdown(descriptor, socket.SHUT_RDWR) == 0


def shown(address: bytes) -> str:
    """Returns the address as text."""
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)


def packed(address: str) -> bytes | None:
    """Returns a numeric address in the form of Endpoint.address; None for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            return _unmapped(socket.inet_pton(family, address.partition("%")[0]))
    return None


def _is_tcp(descriptor: int) -> bool:
    family = option(descriptor, socket.SOL_SOCKET, socket.SO_DOMAIN)
    kind = option(descriptor, socket.SOL_SOCKET, socket.SO_TYPE)
    return family in (socket.AF_INET, socket.AF_INET6) and kind == socket.SOCK_STREAM


def _endpoint(descriptor: int, call: str) -> Endpoint | None:
    buffer = ctypes.create_string_buffer(_ADDRESS_BYTES)
    size = ctypes.c_uint32(_ADDRESS_BYTES)
    if getattr(_libc(), call)(descriptor, buffer, ctypes.byref(size)):
        return None
    raw = buffer.raw[: size.value]
    port = int.from_bytes(raw[2:4], "big")
    match ctypes.c_uint16.from_buffer_copy(raw).value:
        case socket.AF_INET:
            return Endpoint(raw[4:8], port)
        case socket.AF_INET6:
            return Endpoint(_unmapped(raw[8:24]), port, int.from_bytes(raw[24:28], sys.byteorder))
        case _:
            return None


def _unmapped(address: bytes) -> bytes:
    return address[len(_MAPPED) :] if address.startswith(_MAPPED) and len(address) == 16 else address


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
