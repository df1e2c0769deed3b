"""How long does a rank try to reach a store's server that is not up yet, or that does not answer?"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from time import monotonic

CONNECT_TIMEOUT_S = 1.0
PAUSE_S = 0.1  # between two attempts to reach a server that is not up yet


def connect(join: Callable[[], object], host: str, port: int, timeout_s: float) -> None:
    """Calls `join` once a server listens there. Raises what it raises, and RuntimeError on timeout.

    Uses a thread, because a server that accepts and sends nothing would hold the main thread inside C++ indefinitely.
    """
    from worker_client.bounded_threads import BoundedThread  # late: it imports logging

    deadline_s = monotonic() + timeout_s
    _reach(host, port, timeout_s)
    thread = BoundedThread("connect to a store", join)
    thread.start()
    if not thread.join(deadline_s - monotonic()):
        raise RuntimeError(
            f"cannot connect to a store at {host}:{port}: no answer within {timeout_s:.3g} s; check what listens there"
        )
    if thread.error is not None:
        raise thread.error


def _reach(host: str, port: int, timeout_s: float) -> None:
    """Blocks until a server listens there. torch would print each attempt on stderr, with its stack."""
    deadline_s = monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:
            if monotonic() >= deadline_s:
                raise RuntimeError(
                    f"cannot connect to a store at {host}:{port}: {error.strerror or error} for {timeout_s:.3g} s; "
                    "check that rank 0 opens the store, too"
                ) from error
        _pause()


def _pause() -> None:
    """Waits for a moment, because nothing signals that a process elsewhere has begun to listen."""
    threading.Event().wait(PAUSE_S)
