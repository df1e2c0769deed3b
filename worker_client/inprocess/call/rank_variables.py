"""Which variables (MASTER_PORT, RANK) does the wrapped function see, and which does the caller get back?

RANK and WORLD_SIZE are those of the iteration. Under a launcher that serves a store, MASTER_PORT leads to one that no
earlier iteration has used, because old entries would be taken for current ones. On several nodes, MASTER_ADDR is the
address of the node that has active rank 0 in this iteration.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any

from worker_client import job_nodes
from worker_client.guarded_log import GuardedLog
from worker_client.inprocess.releasing import store_waits
from worker_client.inprocess.releasing.awaited_store_server import InterruptibleWaits
from worker_client.inprocess.releasing.missing_store_server import served_while_waiting
from worker_client.inprocess.state import State

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"
VARIABLES = ("RANK", "WORLD_SIZE", MASTER_ADDR, MASTER_PORT)
STORE_NAME = "holdfast/store"

# `holdfast run` has checked that the 64 ports from MASTER_PORT on are free. Scripts use the first of them for their own
# stores, at MASTER_PORT + 2 + iteration; behind each of our ports there is room for that, too.
FIRST_PORT = 32
PORTS = 16
PORT_MAX = 65535

log = GuardedLog("holdfast.inprocess")


class RankVariables:
    """The variables of one call, from construction to `restore()`."""

    def __init__(self) -> None:
        self._before = {name: os.environ.get(name) for name in VARIABLES}
        self._has_store = os.environ.get(AGENT_STORE) == str(True) and bool(self._before[MASTER_PORT])
        self._has_nodes = bool(self._before[MASTER_ADDR]) and job_nodes.has_other_nodes(os.environ)
        self._own_host: str | None = None  # None: not looked up yet
        self._server: Any = None  # a torch store
        self._waits = InterruptibleWaits()

    def enter(self, state: State, call: int, exchange: Callable[[str, str], Mapping[int, str]]) -> None:
        """Sets the variables of the iteration that begins, on every rank. Raises what `exchange(name, value)` raises.

        The launcher's store serves the first iteration. For each later one, active rank 0 serves another store first.
        """
        state.set_distributed_vars()
        if (self._has_store or self._has_nodes) and (call, state.iteration) != (1, 0):
            self._enter_store(state, call, exchange)
        store_waits.begin_iteration(
            state.iteration,
            self._before[MASTER_PORT],
            os.environ.get(MASTER_PORT),
            launchers_host=self._before[MASTER_ADDR] or "",
        )
        if self._has_nodes and not self._has_store:
            self._waits.begin()

    def _enter_store(self, state: State, call: int, exchange: Callable[[str, str], Mapping[int, str]]) -> None:
        """Uses the port and address that active rank 0 publishes; what it leaves out is as launched."""
        self._server, told = None, ""
        if state.active_rank == 0:
            host = self._host() if self._has_nodes else ""  # Always published: ranks may be launched with another.
            if self._has_store:
                port = int(self._before[MASTER_PORT] or 0) + FIRST_PORT + (call + state.iteration) % PORTS
                self._server = _serve(host or self._before[MASTER_ADDR] or "", port)
            told = f"{'' if self._server is None else self._server.port} {host}".rstrip()
        values = exchange(STORE_NAME, told)
        port, _, host = next((value for value in values.values() if value), "").partition(" ")
        os.environ[MASTER_PORT] = port or self._before[MASTER_PORT] or ""
        if self._has_nodes:
            os.environ[MASTER_ADDR] = host or self._before[MASTER_ADDR] or ""

    def _host(self) -> str:
        """Returns the address at which other nodes reach this one."""
        if self._own_host is None:
            launched = self._before[MASTER_ADDR] or ""
            self._own_host = job_nodes.own_address(launched) or launched
        return self._own_host

    def serving_others(self) -> contextlib.AbstractContextManager[None]:
        """Returns a block in which this rank waits for others: a store of the script's own may be missing for them.

        If the launcher serves the store, none is missing; on one node, a rank that waits for it serves it itself.
        """
        is_needed = self._has_nodes and not self._has_store and "torch.distributed" in sys.modules
        return served_while_waiting() if is_needed else contextlib.nullcontext()

    def restore(self) -> None:
        """Resets all of them to their values before the call. Idempotent."""
        store_waits.end_call()
        self._waits.end()
        self._server = None
        _set(self._before)

    @contextlib.contextmanager
    def as_launched(self) -> Generator[None]:
        """Resets all of them, inside the block, to their values before the call."""
        present = {name: os.environ.get(name) for name in VARIABLES}
        _set(self._before)
        try:
            yield
        finally:
            _set(present)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _serve(host: str, port: int) -> Any:  # noqa: ANN401  # a torch.distributed.TCPStore
    """Serves a store in this process, at another port if necessary; None if the script has no torch.distributed."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    for each in (port, 0) if port <= PORT_MAX else (0,):
        try:
            return distributed.TCPStore(host, each, is_master=True, wait_for_workers=False)
        except (RuntimeError, ValueError, OSError) as error:
            log.warning("cannot serve a store for this iteration at port %d: %s", each, error)
    return None
