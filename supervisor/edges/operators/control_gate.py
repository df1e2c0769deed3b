"""Who may call on control.sock, and how does a private supervisor answer there without gRPC until it is asked?

The gate listens with a plain socket and asks the kernel who connects, which gRPC can't do. It passes our own user and
root on to the real server behind a second socket, which has no name in any folder; others get a refusal with the
reason. gRPC costs 30 MiB and a fifth of a second of CPU, and most private runs are never asked anything: so the server
starts at the first connection.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

from supervisor.edges.machine.folders import socket_claim, socket_dir
from supervisor.edges.machine.own_process import socket_relay
from supervisor.edges.machine.processes.peer_credentials import Peer
from supervisor.edges.operators.callers import Callers
from supervisor.edges.operators.refused_peer import refuse
from supervisor.errors import NotPermittedError
from supervisor.pauses import pause

CONNECTIONS_MAX = 32  # of a private supervisor
NODE_CONNECTIONS_MAX = 1_024  # of a node's supervisor: a `holdfast run` keeps one for as long as its job runs
STRANGERS_MAX = 8  # connections being refused at once; more are closed immediately
SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # these are temporary and must not end a job
SHORTAGE_PAUSE_S = 0.25
LAST_ANSWERS_S = 2.0  # at the end, the server's last messages are still passed on for this long
SERVER_DESCRIPTORS = 32  # with fewer left, gRPC is not started: it has ended the process with SIGSEGV

_log = logging.getLogger("holdfast.control")

StartServer = Callable[[Path, TaskGroup], Awaitable[None]]  # returns once the server accepts on the path


class ControlGate:
    """Listens on `socket_path`. Awaits `start_server` once, at the first connection or, if `eager`, before it."""

    def __init__(
        self,
        *,
        socket_path: Path,
        start_server: StartServer,
        eager: bool = False,
        connections_max: int = CONNECTIONS_MAX,
        callers: Callers | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        """`callers` learns which client is behind each connection. `listener` was kept over a restart."""
        self._socket_path = socket_path
        self._inner_path = socket_path.with_name(socket_dir.INNER_CONTROL_SOCKET)
        self._inner = -1  # the inner socket's file, open only by descriptor once its name is removed
        self._eager = eager
        self._strangers = 0
        self._start_server = start_server
        self._starting = anyio.Lock()
        self._started = False
        self._shortage_told = False
        self._connections: set[anyio.CancelScope] = set()
        self._is_ending = False
        self._limit = anyio.Semaphore(connections_max)
        self._callers = callers
        self.listener = listener  # bound at `run`, unless it was kept
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled, then removes the sockets. Raises ConfigurationError if the path can't be served."""
        try:
            with self.listener or socket_claim.bind(self._socket_path) as listener:
                self.listener = listener
                async with anyio.create_task_group() as tasks:
                    if self._eager:
                        await self._start(tasks)
                    self._tasks = tasks
                    task_status.started()
                    try:
                        while True:
                            await self._limit.acquire()
                            tasks.start_soon(self._serve, await self._accept(listener), tasks)
                    finally:
                        self._end_connections()
        finally:
            for path in (self._socket_path, self._inner_path):
                path.unlink(missing_ok=True)
            if self._inner >= 0:
                os.close(self._inner)
                self._inner = -1

    @property
    def connections(self) -> int:
        return len(self._connections)

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
        self._tasks.start_soon(self._serve, client, self._tasks)

    def _end_connections(self) -> None:
        """Lets the server, which ends at the same time, send its last messages, then ends the connections."""
        self._is_ending = True
        for scope in self._connections:
            scope.deadline = anyio.current_time() + LAST_ANSWERS_S

    async def _accept(self, listener: socket.socket) -> socket.socket:
        while True:
            await anyio.wait_readable(listener)
            try:
                client, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue
            except OSError as error:
                if error.errno not in SHORTAGE:
                    raise
                self._tell_shortage(str(error))
                await pause(SHORTAGE_PAUSE_S, why="the kernel does not tell when a descriptor is free again")
            else:
                client.setblocking(False)
                return client

    async def _serve(self, client: socket.socket, tasks: TaskGroup) -> None:
        try:
            with client:
                stranger = _stranger(client)
                if stranger is None:
                    await self._pass_on(client, tasks)
                else:
                    await self._refuse(client, stranger)
        finally:
            self._limit.release()

    async def _refuse(self, client: socket.socket, stranger: NotPermittedError) -> None:
        if self._strangers >= STRANGERS_MAX:
            return
        self._strangers += 1
        try:
            await refuse(client, stranger)
        finally:
            self._strangers -= 1

    async def _start(self, tasks: TaskGroup) -> None:
        """Starts the server and removes the inner socket's name: a process past the directory can't reach it."""
        await self._start_server(self._inner_path, tasks)
        self._started = True
        try:
            self._inner = os.open(self._inner_path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(self._inner_address)
            self._inner_path.unlink()
        except OSError as error:  # without /proc: its directory is still closed to others
            _log.debug("%s keeps its name: %s", self._inner_path, error)

    @property
    def _inner_address(self) -> str:
        return str(self._inner_path) if self._inner < 0 else f"/proc/self/fd/{self._inner}"

    def _tell_shortage(self, why: str) -> None:
        """Reports a shortage once: a peer that tries repeatedly must not fill the terminal."""
        level = logging.DEBUG if self._shortage_told else logging.WARNING
        self._shortage_told = True
        _log.log(level, "cannot answer on %s for now: %s; raise the limit of open files", self._socket_path, why)

    async def _pass_on(self, client: socket.socket, tasks: TaskGroup) -> None:
        async with self._starting:
            if not self._started:
                if not _has_descriptors(SERVER_DESCRIPTORS):
                    self._tell_shortage(f"fewer than {SERVER_DESCRIPTORS} descriptors are left")
                    return
                try:
                    await self._start(tasks)
                except Exception:  # noqa: BLE001 - if gRPC can't start, for any reason, the job must not end
                    _log.exception("cannot answer on %s: the control API did not start", self._socket_path)
                    return
        with contextlib.ExitStack() as closing:
            try:
                inner = closing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                if self._callers is not None:
                    closing.callback(self._callers.leave, self._callers.enter(inner, client))
                inner.connect(self._inner_address)
            except OSError:
                return  # The server is closing, or no descriptor is left; the client sees its connection end.
            if not self._is_ending:
                await self._couple(client, inner)

    async def _couple(self, client: socket.socket, inner: socket.socket) -> None:
        with anyio.CancelScope(shield=True) as scope:  # the deadline is set at the end
            self._connections.add(scope)
            async with anyio.create_task_group() as pair:
                pair.start_soon(socket_relay.copy, client, inner)
                await socket_relay.copy(inner, client)
                if self._is_ending:
                    pair.cancel_scope.cancel()
        self._connections.discard(scope)


def _stranger(client: socket.socket) -> NotPermittedError | None:
    """Returns why the peer may not call; None for our own user and root."""
    try:
        peer = Peer.of(client)
    except OSError as error:
        return NotPermittedError(f"cannot answer: the kernel does not say who asks: {error.strerror or error}")
    if peer.is_this_user:
        return None
    own = f"user id {os.geteuid()} and root" if os.geteuid() else "root"
    return NotPermittedError(
        f"cannot answer user id {peer.uid}: this supervisor answers {own} alone; "
        "ask as that user, or use a supervisor of your own"
    )


def _has_descriptors(count: int) -> bool:
    taken: list[int] = []
    try:
        while len(taken) < count:
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    else:
        return True
    finally:
        for descriptor in taken:
            os.close(descriptor)
