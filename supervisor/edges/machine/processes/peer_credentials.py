"""Which process and which user is at the other end of a Unix socket, according to the kernel?"""

from __future__ import annotations

import os
import socket

import msgspec
from holdfast_wire import socket_user

from supervisor.edges.machine.processes import process_table


class Peer(msgspec.Struct, frozen=True):
    """The process that listens or has connected.

    `foreign`: it is in another user namespace, or its pid is not seen here. The kernel still names its user as known
    here, or as one without an id; but a process of this user may have another id in its container.
    """

    pid: int
    uid: int
    foreign: bool

    @classmethod
    def of(cls, sock: socket.socket) -> Peer:
        """Returns the peer as it was when it connected. Raises OSError."""
        pid, uid, _ = socket_user.credentials(sock)
        foreign = pid == 0
        if not foreign and uid != os.geteuid():
            theirs = process_table.namespace(pid, "user")
            foreign = theirs is not None and theirs != process_table.namespace(os.getpid(), "user")
        return cls(pid, uid, foreign)

    @property
    def is_this_user(self) -> bool:
        """Returns whether it is certainly our user or root: for access that needs no further check."""
        return socket_user.is_this_user_or_root(self.uid)

    @property
    def may_be_this_user(self) -> bool:
        """Returns whether its id allows that it is our user; a foreign id says nothing. Ask for a token next."""
        return self.foreign or self.uid == os.geteuid() or socket_user.is_unmapped(self.uid)
