"""Which sockets did systemd keep for this service over its restart, and are they still the same?

Clients that come during the restart then wait in the socket's queue and are not refused.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import MutableMapping
from pathlib import Path

FIRST_FD = 3
KEPT_MAX = 16
CONTROL = "control"  # the name of the control socket there


def take_kept(environment: MutableMapping[str, str] | None = None) -> dict[str, int]:
    """Returns name → descriptor, not inheritable. Removes the variables, so a second call returns none."""
    variables = os.environ if environment is None else environment
    listed = [variables.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")]
    pid, count, names = listed
    if pid != str(os.getpid()) or not count.isdecimal() or int(count) > KEPT_MAX:
        return {}
    found: dict[str, int] = {}
    for number, name in enumerate(names.split(":")[: int(count)]):
        descriptor = FIRST_FD + number
        os.set_inheritable(descriptor, False)
        if name in found:
            os.close(descriptor)
        else:
            found[name] = descriptor
    return found


def kept_listener(kept: MutableMapping[str, int], name: str, path: Path) -> socket.socket | None:
    """Returns the listening socket of that name if it is the one at `path`; else closes it."""
    descriptor = kept.pop(name, -1)
    if descriptor < 0:
        return None
    try:
        listener = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None
    listener.setblocking(False)
    if _listens_at(listener, path):
        return listener
    listener.close()
    return None


def _listens_at(listener: socket.socket, path: Path) -> bool:
    """Returns whether it listens at `path`. Nobody else can put a socket into that closed, locked folder."""
    try:
        found = path.lstat()
        return (
            listener.getsockname() == str(path)
            and bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            and stat.S_ISSOCK(found.st_mode)
            and found.st_uid == os.geteuid()
        )
    except OSError:
        return False
