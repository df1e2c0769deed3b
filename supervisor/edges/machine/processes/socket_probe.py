"""Does anybody accept connections at a Unix socket, and which process is it?"""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.processes.peer_credentials import Peer

SHORTEST_S = 0.001
_TIME = struct.Struct("ll")  # struct timeval


def connect(path: Path | str, *, timeout_s: float) -> Peer:
    """Who listens there. Blocks for `timeout_s` at most.

    Raises FileNotFoundError where there is no socket, ConnectionRefusedError where nobody listens on it,
    BlockingIOError where its queue stays full, and OSError for all else.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        clock = Clock()
        until_s = clock.now_s() + timeout_s
        while True:
            _bound(probe, until_s - clock.now_s())
            try:
                probe.connect(str(path))
                probe.getpeername()
            except ValueError as error:  # a zero within the path
                raise OSError(errno.EINVAL, str(error)) from error
            except OSError as error:
                # Python takes a connect that a signal has interrupted for one that was made.
                if error.errno != errno.ENOTCONN:
                    raise
            else:
                return Peer.of(probe)


def _bound(probe: socket.socket, timeout_s: float) -> None:
    """By the kernel: a socket with a timeout of Python's does not block, so it would not wait for its turn."""
    timeout_s = max(timeout_s, SHORTEST_S)  # zero would be no bound
    seconds = int(timeout_s)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(seconds, int((timeout_s - seconds) * 1e6)))
