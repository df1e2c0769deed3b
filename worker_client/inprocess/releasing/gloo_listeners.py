"""How is a rank released if it waits inside Gloo for a peer that will never connect?

The module connects in the peer's place. While a group is being created, each pair of ranks is one connection. Its
passive side waits without a socket of its own that could be closed; there is only Gloo's listener. A connection to the
listener names its pair by a number, and all numbers are small. So we connect once for each number and hang up, which
breaks the pair.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable

from worker_client.inprocess.releasing import raw_sockets

CONNECT_TIMEOUT_S = 0.2  # to a listener in this very process
PAIRS_MAX = 1024  # few enough not to fill the listener's backlog
_NUMBER = struct.Struct("=q")


def hang_up(listeners: Iterable[tuple[int, int]], pairs: int) -> int:
    """Breaks the first `pairs` pairs of each listener (descriptor, inode) that are still awaited.

    Returns how many listeners took it. Never raises.
    """
    count = 0
    for descriptor, inode in listeners:
        with raw_sockets.borrowed(descriptor, inode) as own:
            address = None if own is None or not raw_sockets.listens(own) else raw_sockets.own_address(own)
        if address is not None:
            with contextlib.suppress(OSError):
                for number in range(min(pairs, PAIRS_MAX)):
                    with socket.create_connection(address, CONNECT_TIMEOUT_S) as connection:
                        connection.sendall(_NUMBER.pack(number))
                count += 1
    return count
