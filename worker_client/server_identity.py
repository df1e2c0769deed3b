"""Is the process that listens at this socket the supervisor, and not another one that squats on its path?"""

from __future__ import annotations

import socket

from holdfast_wire import socket_user


def check(sock: socket.socket) -> int:
    """Returns the listener's pid, 0 if it has none here. Raises OSError unless it belongs to root or this user.

    Must be called before the token is sent.
    """
    pid, uid, _ = socket_user.credentials(sock)
    if socket_user.is_this_user_or_root(uid) or socket_user.is_unmapped(uid):
        return pid
    raise PermissionError(f"the socket is served by uid {uid}, not by root or this user")
