"""Which users have a supervisor on this node, and when is one started, restarted, or ended?"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Coroutine
from functools import partial

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup

from supervisor.edges.machine.processes.peer_identity import Identity, Limits
from supervisor.edges.users import door_words as words
from supervisor.edges.users import user_process
from supervisor.edges.users.user_folders import Record, UserFolder, UserFolders, bind_for_root
from supervisor.edges.users.user_link import UserLink
from supervisor.edges.users.user_process import StartedSupervisor
from supervisor.errors import ExhaustedError, HoldfastError, NotNowError
from supervisor.pauses import pause

SUPERVISORS_MAX = 1_024
ATTEMPTS = 3  # to hand a connection over: the supervisor may just be leaving
GONE_TIMEOUT_S = 10.0
AGAIN_MIN_S = 0.5  # after a crash; doubled each time
AGAIN_MAX_S = 30.0

Start = Callable[[Identity, Limits, UserFolder], StartedSupervisor]

_log = logging.getLogger("holdfast.users")


class _User(msgspec.Struct):
    """One user's supervisor, present or not."""

    identity: Identity
    folder: UserFolder
    lock: anyio.Lock = msgspec.field(default_factory=anyio.Lock)
    link: UserLink | None = None
    record: Record | None = None
    started: StartedSupervisor | None = None  # None: a previous process of root started it
    failures: int = 0


class UserSupervisors:
    """Manages the supervisors, in root's process. Reads nothing that a user wrote except door_words.py's messages."""

    def __init__(
        self,
        folders: UserFolders,
        start: Start,
        tasks: TaskGroup,
        *,
        cordon: str = "",
        keep_cordon: Callable[[str], Coroutine[None, None, None]] | None = None,
    ) -> None:
        """`cordon`: why the node is cordoned from the start. `keep_cordon` records it for the next process of root."""
        self._folders = folders
        self._start = start
        self._tasks = tasks
        self._users: dict[str, _User] = {}
        self._cordon = cordon
        self._keep_cordon = keep_cordon
        self._is_ending = False

    async def hand_over(self, client: socket.socket, identity: Identity, limits: Limits) -> None:
        """Gives the connection to the user's supervisor. Raises HoldfastError."""
        user = self._user(identity)
        for _ in range(ATTEMPTS):
            link = await self._reach(user, limits)
            if await link.give(client):
                return
        raise NotNowError(
            f"cannot answer user id {identity.uid}: the supervisor of that user does not answer; try again"
        )

    async def begin(self, identity: Identity, limits: Limits) -> None:
        """Starts a user's supervisor before anybody asks for it."""
        user = self._user(identity)
        user.record = Record(identity, limits)
        await self._reach_again(user)

    async def find_again(self) -> None:
        """Connects to the supervisors that root's previous process left; restarts ended ones, so that jobs continue."""
        for record in await to_thread.run_sync(lambda: list(self._folders.recorded())):
            user = self._user(record.identity)
            user.record = record
            self._tasks.start_soon(self._reach_again, user)

    async def end_all(self) -> None:
        """Ends all jobs of all users. Returns once none of them is left."""
        self._is_ending = True
        users = [user for user in self._users.values() if user.link is not None]
        for user in users:
            if user.link is not None:
                await user.link.tell(words.End())
        for user in users:
            if user.link is not None:
                await user.link.ended.wait()
            if user.record is not None:
                await _until_gone(user.record)

    def make_room(self) -> None:
        """Makes all supervisors leave their jobs to those that root's next process starts."""
        self._is_ending = True
        for user in self._users.values():
            if user.link is not None:
                user.link.tell_at_once(words.MakeRoom())

    async def tell_all(self, word: words.ToUser) -> None:
        for user in self._users.values():
            if user.link is not None:
                await user.link.tell(word)

    def _user(self, identity: Identity) -> _User:
        if identity.name not in self._users:
            if self._is_ending:
                raise NotNowError(f"cannot answer user id {identity.uid}: the service of this node is ending")
            if sum(user.link is not None for user in self._users.values()) >= SUPERVISORS_MAX:
                raise ExhaustedError(
                    f"cannot answer user id {identity.uid}: {SUPERVISORS_MAX} users have supervisors on this node"
                )
            self._users[identity.name] = _User(identity, self._folders.of(identity))
        return self._users[identity.name]

    async def _reach(self, user: _User, limits: Limits) -> UserLink:
        async with user.lock:
            if user.link is None or user.link.has_ended:
                user.link = await self._connected(user, limits)
            elif user.record is not None:
                user_process.raise_limits(user.record, limits)
            return user.link

    async def _connected(self, user: _User, limits: Limits) -> UserLink:
        """Connects to the existing supervisor, else to a new one. Raises HoldfastError."""
        try:
            link = UserLink(user.folder)
            user.record = await to_thread.run_sync(user.folder.record) or user.record
        except OSError:
            if self._is_ending:
                raise NotNowError(f"cannot answer user id {user.identity.uid}: the service is ending") from None
            start = partial(self._start, user.identity, limits, user.folder)
            user.started = await to_thread.run_sync(start)
            user.record = user.started.record
            try:
                link = UserLink(user.folder)
            except OSError as error:
                raise NotNowError(f"cannot answer user id {user.identity.uid}: {error}; try again") from error
            _log.info("supervisor %s serves user id %s", user.record.pid, user.identity.uid)
        if user.identity.uid == os.geteuid():
            link.on_cordon = self._note_cordon
        self._tasks.start_soon(self._keep, user, link)
        if self._cordon:
            await link.tell(words.Cordon(self._cordon))
        return link

    def _note_cordon(self, reason: str) -> None:
        if reason != self._cordon:
            self._cordon = reason
            self._tasks.start_soon(self.tell_all, words.Cordon(reason))
            if self._keep_cordon is not None:
                self._tasks.start_soon(self._keep_cordon, reason)

    async def _keep(self, user: _User, link: UserLink) -> None:
        """Watches a supervisor until it ends; restarts it for its jobs unless it was asked to end."""
        started, user.started = user.started, None
        async with anyio.create_task_group() as serving:
            serving.start_soon(self._serve_root, user)
            await link.hear()
            serving.cancel_scope.cancel()
        if started is not None and started.process is not None:
            await to_thread.run_sync(started.process.wait, abandon_on_cancel=True)
        async with user.lock:
            if user.link is not link or self._is_ending:
                return
            user.link = None
            if link.was_let_go:
                user.failures, user.record = 0, None
                await to_thread.run_sync(user.folder.forget)
                return
        _log.warning("the supervisor of user id %s has gone; its jobs wait for the next one", user.identity.uid)
        user.failures += 1
        pause_s = min(AGAIN_MAX_S, AGAIN_MIN_S * 2 ** (user.failures - 1))
        await pause(pause_s, why="one that crashes at once must not be started all the time")
        await self._reach_again(user)

    async def _reach_again(self, user: _User) -> None:
        try:
            await self._reach(user, user.record.limits if user.record is not None else ())
        except HoldfastError as error:
            _log.error("%s", error)

    async def _serve_root(self, user: _User) -> None:
        """Serves root's socket, through which root reaches a user's supervisor at a path that the user can't change."""
        try:
            listener = bind_for_root(user.folder.control_socket, socket.SOCK_STREAM)
        except OSError as error:
            _log.warning("root can't reach the supervisor of user id %s: %s", user.identity.uid, error)
            return
        with listener:
            async with anyio.create_task_group() as tasks:
                while True:
                    await anyio.wait_readable(listener)
                    try:
                        client, _ = listener.accept()
                    except OSError:
                        continue
                    tasks.start_soon(self._give, user, client)

    async def _give(self, user: _User, client: socket.socket) -> None:
        with client:
            if user.link is not None:
                await user.link.give(client)


async def _until_gone(record: Record) -> None:
    """Waits for a process that has closed its door and is about to end."""
    if not user_process.is_running(record):
        return
    try:
        descriptor = os.pidfd_open(record.pid)
    except OSError:
        return
    try:
        with anyio.move_on_after(GONE_TIMEOUT_S):
            await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)
