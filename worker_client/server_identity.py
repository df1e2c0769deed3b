"""Is the process that listens at this socket the supervisor, and not another one that squats on its path?"""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: a user id above 2**31 must not become negative
_FULL_MAP = ["0", "0", "4294967295"]


def check(sock: socket.socket) -> int:
    """Returns the listener's pid, 0 if it has none here. Raises OSError unless it belongs to root or this user.

    Must be called before the token is sent.
    """
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if uid in (0, os.geteuid()) or (uid == _overflow_uid() and _in_user_namespace()):
        return int(pid)
    raise PermissionError(f"the socket is served by uid {uid}, not by root or this user")


def _overflow_uid() -> int:
    """Returns the uid that stands for users without one in this user namespace, such as the host's root."""
    with open("/proc/sys/kernel/overflowuid") as file:
        return int(file.read())


def _in_user_namespace() -> bool:
    with open("/proc/self/uid_map") as file:
        return file.readline().split() != _FULL_MAP
