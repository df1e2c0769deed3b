"""Who may call on control.sock, and when is the control API loaded that answers there?

The gate asks the kernel who connects. Our own user and root are answered; others get a refusal with the reason. Most
private runs are never asked anything, so the control API is loaded at the first connection. If it can't be loaded,
since memory or descriptors have run out, that client is told so, the next one may have more luck, and the job goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from supervisor.edges.machine.folders import socket_claim
from supervisor.edges.machine.own_process import accepting
from supervisor.edges.machine.processes.peer_credentials import Peer
from supervisor.edges.operators.refused_peer import refuse
from supervisor.errors import ExhaustedError, HoldfastError, NotPermittedError

CONNECTIONS_MAX = 32  # of a private supervisor
NODE_CONNECTIONS_MAX = 1_024  # of a node's supervisor: a `holdfast run` keeps one for as long as its job runs
REFUSALS_MAX = 8  # connections being refused at once; more are closed immediately

_log = logging.getLogger("holdfast.control")


class Api(Protocol):
    """See ControlApi."""

    async def serve(self, client: socket.socket) -> None: ...

    def end(self) -> None: ...


class ControlGate:
    """Listens on `socket_path`. Calls `load` once, at the first connection or, if `eager`, before it."""

    def __init__(
        self,
        *,
        socket_path: Path,
        load: Callable[[], Api],
        eager: bool = False,
        connections_max: int = CONNECTIONS_MAX,
        listener: socket.socket | None = None,
    ) -> None:
        """`listener` was kept over a restart."""
        self._socket_path = socket_path
        self._load = load
        self._api = load() if eager else None
        self._refusals = 0
        self._shortage_told = False
        self._connections = 0
        self._is_ending = False
        self._limit = anyio.Semaphore(connections_max)
        self.listener = listener  # bound at `run`, unless it was kept
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled, then removes the sockets. Raises ConfigurationError if the path can't be served."""
        try:
            with self.listener or socket_claim.bind(self._socket_path) as listener:
                self.listener = listener
                async with anyio.create_task_group() as tasks:
                    self._tasks = tasks
                    task_status.started()
                    try:
                        await self._limit.acquire()
                        async for client in accepting.connections(listener, self._tell_shortage):
                            tasks.start_soon(self._meet, client)
                            await self._limit.acquire()
                    finally:
                        self._is_ending = True
                        if self._api is not None:
                            self._api.end()
        finally:
            self._socket_path.unlink(missing_ok=True)

    @property
    def connections(self) -> int:
        return self._connections

    def admit(self, client: socket.socket) -> None:
        """Takes a connection that another process accepted. Closes it if there are too many."""
        try:
            self._limit.acquire_nowait()
        except anyio.WouldBlock:
            client.close()
            return
        if self._tasks is None or self._is_ending:
            self._limit.release()
            client.close()
            return
        self._tasks.start_soon(self._meet, client)

    def _tell_shortage(self, error: OSError) -> None:
        self._tell_once("cannot answer on %s for now: %s; raise the limit of open files", self._socket_path, error)

    async def _meet(self, client: socket.socket) -> None:
        try:
            with client:
                refusal = _stranger(client) or self._prepare()
                if refusal is None:
                    await self._answer(client)
                else:
                    await self._refuse(client, refusal)
        except Exception:  # noqa: BLE001 - whatever a client or a shortage does to us, the job must not end
            self._tell_once("cannot answer a client on %s", self._socket_path, exc_info=True)
        finally:
            self._limit.release()

    async def _answer(self, client: socket.socket) -> None:
        if self._api is None or self._is_ending:
            return
        self._connections += 1
        try:
            await self._api.serve(client)
        finally:
            self._connections -= 1

    def _prepare(self) -> HoldfastError | None:
        """Loads the control API unless it is there. Returns why it can't be."""
        if self._api is not None:
            return None
        try:
            self._api = self._load()
        except Exception as error:  # noqa: BLE001 - if it can't be loaded, for any reason, the job must not end
            why = str(error) or type(error).__name__
            self._tell_once(
                "cannot answer commands on %s for now: %s; raise the limits on memory and open files",
                self._socket_path, why, exc_info=not isinstance(error, (OSError, MemoryError, ImportError)),
            )  # fmt: skip
            return ExhaustedError(
                f"cannot answer: the supervisor can't load its control API: {why}; "
                "raise the limits on memory and open files (ulimit -v, ulimit -n) for the next run; the job goes on"
            )
        return None

    async def _refuse(self, client: socket.socket, refusal: HoldfastError) -> None:
        if self._refusals >= REFUSALS_MAX:
            return
        self._refusals += 1
        try:
            await refuse(client, refusal)
        finally:
            self._refusals -= 1

    def _tell_once(self, text: str, *words: object, exc_info: bool = False) -> None:
        """Reports a shortage once: a peer that tries repeatedly must not fill the terminal."""
        level = logging.DEBUG if self._shortage_told else logging.WARNING
        self._shortage_told = True
        with contextlib.suppress(MemoryError, OSError):
            _log.log(level, text, *words, exc_info=exc_info)


def _stranger(client: socket.socket) -> NotPermittedError | None:
    """Returns why the peer may not call; None for our own user and root."""
    try:
        peer = Peer.of(client)
    except OSError as error:
        why = f"the kernel does not say who asks ({error.strerror or error})"
        return NotPermittedError(f"cannot answer: {why}; try again")
    if peer.is_this_user:
        return None
    own = f"user id {os.geteuid()} and root" if os.geteuid() else "root"
    return NotPermittedError(
        f"cannot answer user id {peer.uid}: this supervisor answers {own} alone; "
        "ask as that user, or use a supervisor of your own"
    )
