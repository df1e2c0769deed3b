"""Which user has the other end of a TCP connection within this machine?

Any user can connect to a loopback address, and any user can listen there. The kernel knows each socket's user and tells
it to everybody (sock_diag(7)). Only a socket that is connected and in a process's hands says something about its peer:
one that was closed, or not accepted yet, may be shown as root's.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from functools import cache

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ESTABLISHED = 1
_ALL_STATES = 0xFFFFFFFF
_NO_COOKIE = (0xFFFFFFFF, 0xFFFFFFFF)
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence number, sender
_REQUEST = struct.Struct("=BBBxI")  # inet_diag_req_v2 before its socket: family, protocol, extensions, states
_SOCKET = struct.Struct(">HH16s16s")  # inet_diag_sockid: both ports and addresses, then interface and cookie
_REST = struct.Struct("=III")
_FAMILY_AND_STATE = struct.Struct("=BB")  # inet_diag_msg
_UID_AT = _HEADER.size + 4 + _SOCKET.size + _REST.size + 12
_UID = struct.Struct("=I")
_ERROR = struct.Struct("=i")
_ANSWER_BYTES = 4096

Address = tuple[str, int] | tuple[str, int, int, int]


def stranger_at(peer: Address, own: Address) -> str:
    """Returns whose socket is at the other end of our connection; "": this process's user has it, or root.

    `peer` and `own` are both ends, as our socket has them. When we have connected, ask after the first byte has come:
    only then the other side has accepted the connection, and not just the kernel. Raises OSError if the other side has
    closed it.
    """
    try:
        found = _socket_at(peer, own)
        if found is None and _socket_at(own, peer) is None:
            return "a user whom the kernel does not name, since it has no tcp_diag"
    except OSError as error:
        return f"a user whom the kernel does not name: {(error.strerror or str(error)).lower()}"
    state, uid = found or (0, 0)
    if state != _ESTABLISHED:
        raise ConnectionResetError("the other side has closed the connection")
    return _stranger(uid)


def user_at(peer: Address, own: Address) -> int | None:
    """Returns the user id of the socket at the other end of our connection; None: the kernel does not say.

    It says nothing about other machines, and nothing to be believed about a connection that the other side has closed.
    """
    try:
        found = _socket_at(peer, own)
    except OSError:
        return None
    return found[1] if found is not None and found[0] == _ESTABLISHED else None


def stranger_listening_at(host: str, port: int) -> str:
    """Returns whose socket listens at an address of this machine; "": this process's user has it, or root, or nobody.

    This is for connections that a library makes, so that our own end is unknown. Ask before and after connecting.
    """
    anywhere = ("::", 0) if ":" in host else ("0.0.0.0", 0)
    try:
        found = _socket_at((host, port), anywhere)
    except OSError as error:
        return f"a user whom the kernel does not name: {(error.strerror or str(error)).lower()}"
    return _stranger(found[1]) if found is not None else ""


def _stranger(uid: int) -> str:
    if uid == _uid_of_unmapped():
        return "a user of another user namespace"
    return "" if uid in (os.geteuid(), 0) else f"uid {uid}"


def refusal_of_user(whose: str) -> str:
    """Returns why two processes do not talk that have neither token nor certificates. `whose`: see `stranger_at`."""
    return (
        f"without a token, all processes of a job belong to one user, here uid {os.geteuid()}, and the other end of "
        f"this connection belongs to {whose}; write --rdzv-conf token_file=F, a secret that is the same on each node"
    )


def _socket_at(local: Address, remote: Address) -> tuple[int, int] | None:
    """Returns the state and the user of the socket with these ends; None: the kernel knows none. Raises OSError."""
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    ends = [socket.inet_pton(family, each[0].partition("%")[0]) for each in (local, remote)]
    asked = (
        _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _ALL_STATES)
        + _SOCKET.pack(local[1], remote[1], *ends)
        + _REST.pack(0, *_NO_COOKIE)
    )
    header = _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.sendto(header + asked, (0, 0))
        answer = kernel.recv(_ANSWER_BYTES, socket.MSG_DONTWAIT)  # The kernel answers within sendto.
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    if kind != _SOCK_DIAG_BY_FAMILY:
        (code,) = _ERROR.unpack_from(answer, _HEADER.size)
        if -code == errno.ENOENT:
            return None  # A kernel without tcp_diag says so of each.
        raise OSError(-code, os.strerror(-code))
    _, state = _FAMILY_AND_STATE.unpack_from(answer, _HEADER.size)
    (uid,) = _UID.unpack_from(answer, _UID_AT)
    return int(state), int(uid)


@cache
def _uid_of_unmapped() -> int | None:
    """Returns the id under which the kernel shows users that our user namespace does not have; None: it has all."""
    with open("/proc/self/uid_map") as file:
        if file.read().split() == ["0", "0", str(0xFFFFFFFF)]:
            return None
    with open("/proc/sys/kernel/overflowuid") as file:
        return int(file.read())
