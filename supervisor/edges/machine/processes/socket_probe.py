"""Does anybody accept connections at a Unix socket, and which process is it?"""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path

from supervisor.edges.machine.processes.peer_credentials import Peer

_TIME = struct.Struct("ll")  # struct timeval


def connect(path: Path | str, *, timeout_s: float) -> Peer:
    """Who listens there. Blocks for `timeout_s` at most.

    Raises FileNotFoundError where there is no socket, ConnectionRefusedError where nobody listens on it,
    BlockingIOError where its queue stays full, and OSError for all else.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # Bounded by the kernel: a socket with a timeout of Python's does not block, so it would not wait for its turn.
        seconds = int(timeout_s)
        bound = _TIME.pack(seconds, int((timeout_s - seconds) * 1e6))
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
        try:
            probe.connect(str(path))
        except ValueError as error:  # a zero within the path
            raise OSError(errno.EINVAL, str(error)) from error
        return Peer.of(probe)
