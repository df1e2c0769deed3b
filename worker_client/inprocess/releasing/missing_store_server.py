"""How is a rank released that waits for a TCPStore which nobody serves?

If the rank that should serve the store fails first, the others try to connect inside C++ until their own timeout: there
is no connection to shut down, and no signal interrupts that. So a rank that has to leave the function serves the
missing store itself. Its main thread connects, and the connection can be shut down. This works where MASTER_ADDR is
this host; the server ends before the rank arrives at the barrier, so the next iteration finds the port free.

Ranks on other hosts need a rank on the host of MASTER_ADDR: one that waits for them at the barrier serves the store.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Generator
from datetime import timedelta
from typing import Any

from worker_client.bounded_threads import BoundedThread, join_all
from worker_client.inprocess.releasing.store_waits import Place, expected

TIMEOUT_S = 2.0  # to connect to our own server
FIRST_PAUSE_S = 0.3  # in which almost every rank arrives
PAUSE_MAX_S = 2.0
END_TIMEOUT_S = 2 * TIMEOUT_S


class SubstituteStores:
    """Stores in place of those that nobody serves, until `close()`."""

    def __init__(self) -> None:
        self._stores: dict[int, Any] = {}  # torch stores by port

    def open(self, places: list[Place]) -> int:
        """Serves each of these places that is on this host and free. Returns how many are served now. Never raises."""
        for place in places:
            if place.port not in self._stores and _is_here(place.address) and _is_free(place.port):
                self._serve(place.port)
        return len(self._stores)

    def close(self) -> None:
        self._stores.clear()

    def _serve(self, port: int) -> None:
        timeout = timedelta(seconds=TIMEOUT_S)
        try:
            # torch serves at all addresses, so it need not look up the name of MASTER_ADDR.
            self._stores[port] = sys.modules["torch.distributed"].TCPStore(
                "127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timeout
            )
        except (KeyError, AttributeError, RuntimeError, ValueError, OSError):
            return  # Another process serves there by now, which does as well.


@contextlib.contextmanager
def served_while_waiting() -> Generator[None]:
    """Serves, after a moment, a store on this host that other ranks may wait for while this one waits for them."""
    is_over = threading.Event()
    server = BoundedThread("serve the stores that other ranks wait for", lambda: _serve_until(is_over))
    server.start()
    try:
        yield
    finally:
        is_over.set()
        join_all([server], END_TIMEOUT_S)


def _serve_until(is_over: threading.Event) -> None:
    substitutes, pause_s = SubstituteStores(), FIRST_PAUSE_S
    while not is_over.wait(pause_s):
        substitutes.open(expected())  # again, because a port may have been in use
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
    substitutes.close()


def _is_here(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    """Returns whether no process of this host listens at the port."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except (OSError, OverflowError):  # the latter: there is no such port
        return False
    return True
