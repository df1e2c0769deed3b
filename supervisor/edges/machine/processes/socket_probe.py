"""Does any process accept connections at a Unix socket, and which one?"""

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
    """Returns the process that listens there. Blocks and raises as `connected` does."""
    with connected(path, timeout_s=timeout_s) as probe:
        return Peer.of(probe)


def connected(path: Path | str, *, timeout_s: float) -> socket.socket:
    """Returns a connection to the process that listens there. Blocks for at most `timeout_s`.

    Raises FileNotFoundError if there is no socket, ConnectionRefusedError if nobody listens on it, BlockingIOError if
    its queue stays full, and OSError for anything else.
    """
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        clock = Clock()
        until_s = clock.now_s() + timeout_s
        while True:
            _bound(probe, until_s - clock.now_s())
            try:
                probe.connect(str(path))
                probe.getpeername()
            except ValueError as error:  # a zero byte in the path
                raise OSError(errno.EINVAL, str(error)) from error
            except OSError as error:
                # Python takes a connect that a signal interrupted for a successful one.
                if error.errno != errno.ENOTCONN:
                    raise
            else:
                return probe
    except BaseException:  # raised again
        probe.close()
        raise


def _bound(probe: socket.socket, timeout_s: float) -> None:
    """Sets the kernel's timeout: with a Python timeout, the socket would not block to wait for its turn."""
    timeout_s = max(timeout_s, SHORTEST_S)  # zero would mean no bound
    seconds = int(timeout_s)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(seconds, int((timeout_s - seconds) * 1e6)))
