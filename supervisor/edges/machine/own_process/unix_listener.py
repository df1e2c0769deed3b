"""How is a Unix socket bound at a path so that nobody can connect before it has its mode?"""

from __future__ import annotations

import socket
from pathlib import Path

STREAM = socket.SOCK_STREAM | socket.SOCK_NONBLOCK


def listening(path: Path, *, mode: int, backlog: int, kind: int = STREAM) -> socket.socket:
    """Returns a listening socket at `path`, where nothing may be. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener
