"""How does a rank wait for a TCPStore that another host is to serve, so that it can be released?

torch's client tries to connect inside C++ until its own timeout. If the rank that should serve the store is killed
first, and no other rank is left on that host (missing_store_server.py), nothing can end that. So inside a wrapped call
on several nodes, init_process_group() tries in Python whether the store is served, and has torch connect once it is:
the abort's exception reaches a main thread that executes Python.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

_MAKE_STORE = "_create_c10d_store"  # (host, port, rank, world size, timeout, …)
ATTEMPT_S = 2.0  # for one connection; an exception waits for as long, if packets to that host are dropped
PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 0.2


class InterruptibleWaits:
    """Lets the waits of init_process_group() be interrupted, from `begin` to `end`. Both are idempotent."""

    def __init__(self) -> None:
        self._torch_s: tuple[ModuleType, Callable[..., Any]] | None = None
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Does nothing if torch's rendezvous is not loaded yet, or is not the one that we know."""
        rendezvous = sys.modules.get("torch.distributed.rendezvous")
        make = getattr(rendezvous, _MAKE_STORE, None)
        if self._torch_s is not None or rendezvous is None or make is None:
            return

        is_over = self._is_over = threading.Event()

        def make_store(host: str, port: int, rank: int, *others: Any, **named: Any) -> Any:  # noqa: ANN401 - torch's
            timeout = named.get("timeout", others[1] if len(others) > 1 else None)
            if rank != 0 and isinstance(timeout, timedelta):
                wait_until_served(host, port, timeout.total_seconds(), is_over)
            return make(host, port, rank, *others, **named)

        self._torch_s = rendezvous, make
        setattr(rendezvous, _MAKE_STORE, make_store)

    def end(self) -> None:
        self._is_over.set()
        if self._torch_s is not None:
            setattr(self._torch_s[0], _MAKE_STORE, self._torch_s[1])
            self._torch_s = None


def wait_until_served(host: str, port: int, timeout_s: float, is_over: threading.Event) -> None:
    """Returns when somebody listens at the port, or the call is over. Raises TimeoutError after the time."""
    began_s, pause_s = time.monotonic(), PAUSE_MIN_S
    while True:
        try:
            with contextlib.closing(socket.create_connection((host, port), timeout=ATTEMPT_S)):
                return
        except OSError as error:
            if time.monotonic() - began_s + pause_s > timeout_s:
                raise TimeoutError(
                    f"cannot connect to the store at {host}:{port} within {timeout_s:g} s: {error}; "
                    "look at the output of rank 0, which is to serve it"
                ) from error
        if is_over.wait(pause_s):
            return
        pause_s = min(2 * pause_s, PAUSE_MAX_S)
