"""Which process and user is at the other end of a Unix socket, and which user id says nothing here?

Both sides ask here: the kernel alone says who listens or connects.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

_CREDENTIALS = struct.Struct("iII")  # struct ucred; unsigned, for user ids above 2**31
_FULL_MAP = ["0", "0", "4294967295"]
_USUAL_OVERFLOW_UID = 65534


class Credentials(NamedTuple):
    """A process that listens, or has connected. `pid` 0: it is in another pid namespace."""

    pid: int
    uid: int
    gid: int


def credentials(sock: socket.socket) -> Credentials:
    """Returns the peer as it was when it listened or connected. Raises OSError."""
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Credentials(*_CREDENTIALS.unpack(packed))


def is_this_user_or_root(uid: int) -> bool:
    """Returns whether it is the id of our user or root. Says nothing about an id that `is_unmapped`."""
    return uid in (0, os.geteuid())


def is_unmapped(uid: int) -> bool:
    """Returns whether the id stands for all users without one in this user namespace, such as the host's root."""
    return uid == _overflow_uid() and _in_user_namespace()


def _overflow_uid() -> int:
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _USUAL_OVERFLOW_UID


def _in_user_namespace() -> bool:
    """Returns whether some users have no id here; in the first namespace, the overflow id is a real user."""
    try:
        with open("/proc/self/uid_map") as file:
            return file.readline().split() != _FULL_MAP
    except OSError:
        return False
