"""Is it the supervisor that listens at this socket, and not another process that squats on its path?"""

from __future__ import annotations

import os
import socket
import struct

_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: a user id above 2**31 is no negative number
_FULL_MAP = ["0", "0", "4294967295"]


def check(sock: socket.socket) -> int:
    """Returns the pid of the listener, 0 if it has none here. Raises OSError unless it is root or this user.

    Asked before the token is sent.
    """
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if uid in (0, os.geteuid()) or (uid == _overflow_uid() and _in_user_namespace()):
        return int(pid)
    raise PermissionError(f"the socket is served by uid {uid}, who is neither root nor this user")


def _overflow_uid() -> int:
    """What the kernel calls a user that this user namespace has no name for: root of the host, among others."""
    with open("/proc/sys/kernel/overflowuid") as file:
        return int(file.read())


def _in_user_namespace() -> bool:
    with open("/proc/self/uid_map") as file:
        return file.readline().split() != _FULL_MAP
