"""Which process and which user is at the other end of a Unix socket, according to the kernel?"""

from __future__ import annotations

import os
import socket
import struct

import msgspec

from supervisor.edges.machine.processes import process_table

_CREDENTIALS = struct.Struct("iII")  # struct ucred; unsigned, for user ids above 2**31


class Peer(msgspec.Struct, frozen=True):
    """The process that connected. `foreign`: it is in another user namespace, so its ids mean nothing here."""

    pid: int
    uid: int
    foreign: bool

    @classmethod
    def of(cls, sock: socket.socket) -> Peer:
        """Returns the peer as it was when it connected. Raises OSError."""
        pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        foreign = pid == 0
        if not foreign and uid != os.geteuid():
            theirs = process_table.namespace(pid, "user")
            foreign = theirs is not None and theirs != process_table.namespace(os.getpid(), "user")
        return cls(pid, uid, foreign)

    @property
    def is_this_user(self) -> bool:
        """Returns whether it is certainly our user or root: for access that needs no further check."""
        return self.uid in (0, os.geteuid())

    @property
    def may_be_this_user(self) -> bool:
        """Returns whether its id allows that it is our user; a foreign id says nothing. Ask for a token next."""
        return self.foreign or self.uid == os.geteuid() or (self.uid == _overflow_uid() and _in_user_namespace())


def _overflow_uid() -> int:
    """Returns the id that the kernel shows for users without an id in this user namespace."""
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 65534


def _in_user_namespace() -> bool:
    """Returns whether some users have no id here; in the first namespace, the overflow id is a real user."""
    try:
        with open("/proc/self/uid_map") as file:
            return file.readline().split() != ["0", "0", "4294967295"]
    except OSError:
        return False
