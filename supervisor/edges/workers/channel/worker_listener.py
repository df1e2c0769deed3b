"""How does the worker socket stay reachable despite deleted files, missing descriptors and too many strangers?"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio

from supervisor.edges.machine.folders import socket_claim, socket_dir
from supervisor.edges.machine.folders.inotify import RENAMED_OR_DELETED, DirectoryWatch
from supervisor.edges.machine.folders.socket_claim import SocketDirClaim
from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.errors import HoldfastError
from supervisor.ports.timed_waits import pause

RETRY_FIRST_S = 0.25  # accept again after running out of descriptors; doubles while a deleted socket can't be restored
RETRY_MAX_S = 30.0


_log = logging.getLogger("holdfast.workers")


class WorkerListener:
    """Accepts connections at one path while it runs."""

    def __init__(self, path: Path, *, on_accept: Callable[[socket.socket], None]) -> None:
        """`on_accept` owns the socket that it gets and never blocks or raises. `path`: see socket_dir.worker_socket."""
        self._path = path
        self._dir = socket_dir.holder_of(path)
        self._on_accept = on_accept
        self._reserve = -1  # a spare descriptor, which admits one more rank when none are left
        self._freed = anyio.Event()
        self._accepting = anyio.CancelScope()
        self._identity: tuple[int, int] | None = None
        self._listener: socket.socket | None = None
        self._claim: SocketDirClaim | None = None
        self.pauses = 0

    def open(self) -> None:
        """Claims the directory and binds; the caller must call `close`. Raises HoldfastError."""
        self._claim = SocketDirClaim(self._dir)
        try:
            self._bind()
        except HoldfastError:
            self._claim.close()
            raise
        self._reserve_one()

    async def run(self) -> None:
        """Accepts connections until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_path)
            while True:
                await self._accept_until_lost()
                await self._bind_again()

    def freed(self) -> None:
        """Notes that a connection was closed: its descriptor is free again."""
        self._freed.set()

    def check(self) -> None:
        """Checks that the socket and its link exist, and has missing ones restored. Costs two system calls."""
        if self._identity is not None and socket_claim.identity(self._path) != self._identity:
            self._accepting.cancel()
        else:
            socket_claim.link_beside(self._path)

    def _bind(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._listener = socket_claim.bind_in_own_dir(self._path)
        self._identity = socket_claim.identity(self._path)

    async def _bind_again(self) -> None:
        retry_s = RETRY_FIRST_S
        while True:
            try:
                assert self._claim is not None
                self._claim.renew()
                self._bind()
            except (HoldfastError, OSError) as error:
                _log.warning("the worker socket was lost; trying again in %.2f s: %s", retry_s, error)
                await pause(retry_s, why="nothing tells when the folder can be used again")
                retry_s = min(2 * retry_s, RETRY_MAX_S)
            else:
                _log.warning("the worker socket was lost and has been made again: %s", self._path)
                return

    async def _keep_path(self) -> None:
        """Watches the directory; if that is impossible, the `check` at each new worker must do."""
        while True:
            try:
                watch = DirectoryWatch(self._dir, self._path.parent, changes=RENAMED_OR_DELETED)
            except OSError as error:
                _log.warning("the socket directory can't be watched: %s", error)
                await pause(RETRY_MAX_S, why="nothing tells when the folder can be used again")
                self.check()
                continue
            try:
                directories = self._identities()
                while self._identities() == directories:
                    self.check()  # also before the first wait: it may have been deleted before the watch began
                    await watch.changed()
            finally:
                watch.close()
            self._accepting.cancel()  # the directory itself was deleted or replaced
            await pause(RETRY_FIRST_S, why="the accepting task makes the folder again; then it can be watched again")

    def _identities(self) -> list[tuple[int, int] | None]:
        return [socket_claim.identity(path) for path in (self._dir, self._path.parent)]

    async def _accept_until_lost(self) -> None:
        """Accepts until the socket's file is lost."""
        listener = self._listener
        assert listener is not None
        self._accepting = anyio.CancelScope()
        with self._accepting:
            self.check()
            while True:
                await anyio.wait_readable(listener)
                if not self._accept_one(listener):
                    self.pauses += 1
                    self._freed = anyio.Event()
                    with anyio.move_on_after(RETRY_FIRST_S):
                        await self._freed.wait()
                    self._reserve_one()

    def _accept_one(self, listener: socket.socket) -> bool:
        """Accepts one connection. Returns False if no descriptor is left; waiting clients are served later."""
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return True
        except OSError as error:
            if error.errno not in kernel_error_remedies.OF_DESCRIPTORS:
                raise
            if self._reserve < 0:
                return False
            os.close(self._reserve)
            self._reserve = -1
            return self._accept_one(listener)
        self._on_accept(sock)
        return True

    def _reserve_one(self) -> None:
        if self._reserve < 0:
            try:
                self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return  # still none left; tried again after the next pause

    def close(self) -> None:
        """Removes the socket and releases the directory."""
        if self._identity is not None and socket_claim.identity(self._path) == self._identity:
            self._path.unlink(missing_ok=True)
            with suppress(OSError):
                (self._dir / self._path.name).unlink(missing_ok=True)
        if self._listener is not None:
            self._listener.close()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
        if self._claim is not None:
            self._claim.close()
