"""Which users have a supervisor on this node, and when is one started, restarted, or ended?"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

import anyio
import msgspec
from anyio.abc import TaskGroup

from supervisor.edges.machine.own_process import accepting
from supervisor.edges.machine.own_process.threads import in_thread_or_here
from supervisor.edges.machine.processes.peer_identity import Identity, Limits, highest
from supervisor.edges.users import user_link_messages as messages
from supervisor.edges.users import user_process, user_supervisor_limit
from supervisor.edges.users.supervisor_processes import SupervisorProcesses
from supervisor.edges.users.user_folders import Record, UserFolder, UserFolders, bind_for_root
from supervisor.edges.users.user_link import UserLink
from supervisor.errors import ExhaustedError, HoldfastError, NotNowError
from supervisor.ports.timed_waits import pause

ATTEMPTS = 3  # to hand a connection over: the supervisor may just be leaving
GONE_TIMEOUT_S = 20.0  # from the end of its link to the end of the process; then it is killed
STOP_TIMEOUT_S = 90.0  # of the service, if TimeoutStopSec= of its unit is not known
STOP_TIMEOUT_MAX_S = 3600.0  # if it has no limit: nobody's supervisor holds up a shutdown for good
KILL_MARGIN_S = 20.0  # what is left of it for the end of the processes that are killed
STOPPED_LOOKS_S = 3.0  # between looks for a supervisor that a signal has stopped, while the service ends
STEADY_S = 60.0  # after so long, a crash counts as the first one
AGAIN_MIN_S = 0.5  # after a crash; doubled each time
AGAIN_MAX_S = 30.0

_log = logging.getLogger("holdfast.users")


class _User(msgspec.Struct):
    """One user's supervisor, present or not."""

    identity: Identity
    folder: UserFolder
    lock: anyio.Lock = msgspec.field(default_factory=anyio.Lock)
    link: UserLink | None = None
    record: Record | None = None  # of the supervisor that runs, or is restarted
    process: subprocess.Popen[bytes] | None = None  # None: it is not our child
    clients: int = 0  # being handed over
    is_starting: bool = False
    failures: int = 0
    was_stopped: bool = False  # by a signal, at some time while the service ends
    cordon: str = ""  # the last one that its supervisor was told, so that the next one hears of the end


class UserSupervisors:
    """Manages the supervisors, in root's process. Reads nothing that a user wrote except user_link_messages.py's
    messages.

    No call waits for a user in a thread that others use.
    """

    def __init__(
        self,
        folders: UserFolders,
        processes: SupervisorProcesses,
        tasks: TaskGroup,
        *,
        login_of: Callable[[int], int],
        count_of_login: Callable[[int, Sequence[int], int], int],
        cordon: str = "",
        keep_cordon: Callable[[str], Coroutine[None, None, None]] | None = None,
    ) -> None:
        """`login_of`: see Logins.of. `count_of_login`: see Logins.count.

        `cordon`: why the node is cordoned from the start. `keep_cordon` records it for the next process of root.
        """
        self._folders = folders
        self._processes = processes
        self._tasks = tasks
        self._login_of = login_of
        self._count_of_login = count_of_login
        self._users: dict[str, _User] = {}
        self._cordon = cordon
        self._first_cordon = cordon  # what root's previous process has told those that it left
        self._keep_cordon = keep_cordon
        self._is_ending = False

    async def hand_over(self, client: socket.socket, identity: Identity, limits: Limits) -> None:
        """Gives the connection to the user's supervisor. Raises HoldfastError."""
        user = self._user(identity)
        user.clients += 1
        try:
            for _ in range(ATTEMPTS):
                link = await self._reach(user, limits)
                if await link.give(client):
                    return
                if not link.has_ended:
                    break
        finally:
            user.clients -= 1
            self._forget_if_unused(user)
        raise ExhaustedError(
            f"cannot answer user id {identity.uid}: the supervisor of that user does not answer; try again"
        )

    def begin(self, identity: Identity, limits: Limits) -> None:
        """Starts a user's supervisor before anybody asks for it, unless `find_again` does. Does not wait for it."""
        user = self._user(identity)
        if user.record is None:
            user.record = Record(identity, limits)
            self._tasks.start_soon(self._reach_again, user)

    async def find_again(self) -> None:
        """Connects to the supervisors that root's previous process left; restarts ended ones, so that jobs continue."""
        for record in await in_thread_or_here(lambda: list(self._folders.recorded())):
            user = self._user(record.identity)
            user.record = record
            self._tasks.start_soon(self._reach_again, user)

    async def end_all(self, within_s: float) -> None:
        """Ends all jobs of all users; kills what is left after `within_s`. Returns once none of them is left."""
        self._is_ending = True
        async with anyio.create_task_group() as tasks:
            for user in self._users.values():
                tasks.start_soon(self._end, user, within_s)

    def make_room(self) -> None:
        """Makes all supervisors leave their jobs to those that root's next process starts."""
        self._is_ending = True
        for user in self._users.values():
            if user.link is not None:
                user.link.tell_at_once(messages.MakeRoom())

    def _user(self, identity: Identity) -> _User:
        if identity.name not in self._users:
            if self._is_ending:
                raise NotNowError(
                    f"cannot answer user id {identity.uid}: the service of this node is ending; try again once it runs"
                )
            self._users[identity.name] = _User(identity, self._folders.of(identity), cordon=self._first_cordon)
        return self._users[identity.name]

    def _forget_if_unused(self, user: _User) -> None:
        if user.record is None and user.link is None and not user.clients:
            self._users.pop(user.identity.name, None)
            login = self._login_of(user.identity.uid)
            if all(self._login_of(each.identity.uid) != login for each in self._users.values()):
                self._processes.forget(login)
            self._processes.forget(user.identity.name)

    async def _reach(self, user: _User, limits: Limits) -> UserLink:
        async with user.lock:
            if user.link is None or user.link.has_ended:
                if self._is_ending:
                    raise NotNowError(
                        f"cannot answer user id {user.identity.uid}: the service of this node is ending; "
                        "try again once it runs"
                    )
                return await self._connected(user, limits)
            if user.record is not None:
                raised = user_process.raise_limits(user.record, limits)
                if raised is not user.record:  # The next supervisor of this user has them from its start on.
                    user.record = raised
                    await in_thread_or_here(partial(user.folder.note_limits, raised.limits))
            return user.link

    async def _connected(self, user: _User, limits: Limits) -> UserLink:
        """Connects to the supervisor that a previous process of root started, else to a new one. Raises HoldfastError.

        The former supervisor is gone before the next one is started.
        """
        link = await self._found(user) if user.link is None else None
        if link is None:
            await self._end_process(user)
            await self._start(user, limits)
            try:
                link = self._connect(user)
            except OSError as error:
                raise ExhaustedError(f"cannot answer user id {user.identity.uid}: {error}; try again") from error
        user.link = link
        self._tasks.start_soon(self._keep, user, link)
        # Without either, it hears of no end: another node of a user's job may have cordoned that supervisor alone.
        if self._cordon or user.cordon:
            await self._tell_cordon(user, link)
        return link

    async def _found(self, user: _User) -> UserLink | None:
        record = await in_thread_or_here(user.folder.record)
        if record is None:
            return None
        user.record = record
        try:
            return self._connect(user) if user_process.is_running(record) else None
        except OSError:
            return None

    def _connect(self, user: _User) -> UserLink:
        """Raises OSError. Only the supervisor of this process's own user may cordon the node."""
        is_own = user.identity.uid == os.geteuid()
        return UserLink(user.folder, on_cordon=self._note_cordon if is_own else None)

    async def _start(self, user: _User, limits: Limits) -> None:
        """Starts a supervisor. Raises HoldfastError."""
        if user.record is not None:
            limits = highest(user.record.limits, limits)  # The first to come back may have the lowest.
        login = self._login_of(user.identity.uid)
        is_first = user.record is None
        if is_first:
            there = [each for each in self._users.values() if each.record is not None or each.is_starting]
            others = [self._login_of(each.identity.uid) for each in there]  # more may be known than when they came
            user_supervisor_limit.check(others, login, user.identity.uid)
        user.is_starting = True
        try:
            started = await self._processes.start(
                user.identity, limits, user.folder, login, is_first=is_first, is_last=self._is_ending,
                check=partial(self._check_folders, user) if is_first else None,
            )  # fmt: skip
        except HoldfastError:
            if is_first:  # nobody needs its restart
                await in_thread_or_here(user.folder.forget)
            raise
        finally:
            user.is_starting = False
        user.record, user.process = started.record, started.process
        _log.info("supervisor %s serves user id %s", user.record.pid, user.identity.uid)

    def _check_folders(self, user: _User) -> None:
        """Raises ExhaustedError if the user may not have one more folder. Blocks on the user database."""
        if not user.folder.path.exists():
            uid = user.identity.uid
            uids = self._folders.uids()
            count = self._count_of_login(uid, uids, user_supervisor_limit.FOLDERS_OF_ONE_MAX)
            user_supervisor_limit.check_folders(count, uid)

    async def _end_process(self, user: _User) -> None:
        """Returns once the former process is gone; kills one that stays.

        Raises ExhaustedError if the kernel keeps it.
        """
        if user.record is None:
            return
        patience_s = 0.0 if user.link is not None and user.link.fault else GONE_TIMEOUT_S
        if not await user_process.until_gone(user.record, patience_s):
            _log.warning("killing supervisor %s of user id %s: %s", user.record.pid, user.identity.uid, _why(user.link))
            if not await self._processes.kill(user.record):
                raise ExhaustedError(
                    f"cannot start the supervisor of user id {user.identity.uid}: the former one, process "
                    f"{user.record.pid}, was killed, and the kernel keeps it; try again"
                )
        if user.process is not None:
            user.process.poll()

    def _note_cordon(self, reason: str) -> None:
        if reason != self._cordon:
            self._cordon = reason
            for user in self._users.values():
                if user.link is not None:
                    self._tasks.start_soon(self._tell_cordon, user, user.link)
            if self._keep_cordon is not None:
                self._tasks.start_soon(self._keep_cordon, reason)

    async def _tell_cordon(self, user: _User, link: UserLink) -> None:
        reason = self._cordon
        if await link.tell(messages.Cordon(reason)):
            user.cordon = reason

    async def _keep(self, user: _User, link: UserLink) -> None:
        """Watches a supervisor until it ends; restarts it for its jobs unless it was asked to end."""
        since_s = anyio.current_time()
        async with anyio.create_task_group() as serving:
            serving.start_soon(self._serve_root, user)
            await link.hear()
            serving.cancel_scope.cancel()
        async with user.lock:
            if user.link is not link or self._is_ending:
                return
            try:
                await self._end_process(user)
            except HoldfastError as error:
                _log.error("%s", error)
            user.link = None
            user.failures = 0 if anyio.current_time() - since_s >= STEADY_S else user.failures + 1
            if link.was_let_go:
                user.record = user.process = None
                await in_thread_or_here(user.folder.forget)
                self._forget_if_unused(user)
                return
        _log.warning("the supervisor of user id %s has gone; its jobs wait for the next one", user.identity.uid)
        await self._pause(user)
        await self._reach_again(user)

    async def _reach_again(self, user: _User) -> None:
        """Starts a supervisor, or connects to it, however often that fails: its jobs wait for it."""
        said = ""
        while user.record is not None and not self._is_ending:
            try:
                await self._reach(user, user.record.limits)
            except HoldfastError as error:
                if str(error) != said:
                    said = str(error)
                    _log.error("%s", said)
                user.failures += 1
                await self._pause(user)
            else:
                return

    async def _pause(self, user: _User) -> None:
        pause_s = min(AGAIN_MAX_S, AGAIN_MIN_S * 2 ** min(user.failures - 1, 16))
        await pause(pause_s, why="one that crashes at once must not be started all the time")

    async def _end(self, user: _User, within_s: float) -> None:
        """Ends a user's jobs, by the supervisor if it can, else by force."""
        is_gone = False
        with anyio.move_on_after(within_s) as waiting:
            async with user.lock, anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_if_stopped, user, waiting)
                is_gone = await self._has_ended(user) and not user.was_stopped
                tasks.cancel_scope.cancel()
        if not is_gone:
            _log.error(
                "killing the supervisor of user id %s and its jobs: it is stopped, or has not ended them within %g s; "
                "for longer jobs, raise TimeoutStopSec= of the service", user.identity.uid, within_s,
            )  # fmt: skip
            await self._processes.kill_all(user.record or Record(user.identity, ()))
        if user.process is not None:
            user.process.poll()

    async def _has_ended(self, user: _User) -> bool:
        """Tells a supervisor to end; returns whether it and its jobs have."""
        if user.record is None:
            return True
        link = user.link
        if link is None or (link.has_ended and not link.was_let_go):  # it has just crashed, and its jobs are left
            try:
                link = await self._connected(user, user.record.limits)
            except HoldfastError as error:
                _log.error("%s", error)
                return False
        await link.tell(messages.End())
        await link.ended.wait()
        return not link.fault and await user_process.until_gone(user.record, GONE_TIMEOUT_S)

    async def _serve_root(self, user: _User) -> None:
        """Serves root's socket, through which root reaches a user's supervisor at a path that the user can't change."""
        try:
            listener = bind_for_root(user.folder.control_socket, socket.SOCK_STREAM)
        except OSError as error:
            _log.warning("root can't reach the supervisor of user id %s: %s", user.identity.uid, error)
            return
        with listener:
            async with anyio.create_task_group() as tasks:
                async for client in accepting.connections(listener):
                    tasks.start_soon(self._give, user, client)

    async def _give(self, user: _User, client: socket.socket) -> None:
        with client:
            if user.link is not None and not user.link.was_let_go:
                await user.link.give(client)


def end_timeout_s(stop_timeout_s: float | None) -> float:
    """Returns how long jobs have when the service ends, by the limit that systemd has for it; None: not known."""
    limit_s = min(STOP_TIMEOUT_S if stop_timeout_s is None else stop_timeout_s, STOP_TIMEOUT_MAX_S)
    return max(limit_s - KILL_MARGIN_S, limit_s / 2)


async def _cancel_if_stopped(user: _User, waiting: anyio.CancelScope) -> None:
    """Cancels the wait for a supervisor that can do nothing. A debugger stops one for a moment only.

    One that is killed meanwhile, by systemd's watchdog, has not ended its jobs, and its unit may start again. systemd
    continues what it kills, so a later look does not show that it was stopped.
    """
    is_stopped = False
    while True:
        was_stopped, is_stopped = is_stopped, _is_stopped(user)
        user.was_stopped = user.was_stopped or is_stopped
        if was_stopped and is_stopped:
            waiting.cancel()
        await pause(STOPPED_LOOKS_S, why="the kernel tells of a stopped process nobody but its parent")


def _is_stopped(user: _User) -> bool:
    return user.record is not None and user_process.is_stopped(user.record)


def _why(link: UserLink | None) -> str:
    return (
        link.fault if link is not None and link.fault else f"it stays, {GONE_TIMEOUT_S:g} s after it closed its socket"
    )
