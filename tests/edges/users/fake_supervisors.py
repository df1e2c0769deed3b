"""Supervisors of users that are tasks of this process."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import EventLoopToken

from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.peer_identity import Identity, Limits
from supervisor.edges.users import user_link_messages as messages
from supervisor.edges.users import user_process
from supervisor.edges.users.supervisor_processes import SupervisorProcesses
from supervisor.edges.users.user_folders import Record, UserFolder, UserFolders
from supervisor.edges.users.user_link import HandoverReceiver
from supervisor.edges.users.user_process import StartedSupervisor
from supervisor.edges.users.user_supervisors import UserSupervisors

ALICE, BOB = Identity(54321, 54321, ()), Identity(54322, 54322, ())


def started(identity: Identity, limits: Limits, command: list[str]) -> Record:
    """Starts a process in the place of a supervisor, whose parent waits for it at once."""
    process = subprocess.Popen(command, start_new_session=True)
    threading.Thread(target=process.wait, daemon=True).start()
    found = process_table.look_up(process.pid)
    assert found is not None
    return Record(identity, limits, process.pid, found.started_ticks)


class Fakes:
    """Replaces processes: each start puts a receiver into this process."""

    def __init__(self) -> None:
        self.starts: list[Identity] = []
        self.listeners: dict[int, socket.socket] = {}
        self.running: dict[int, anyio.CancelScope] = {}
        self.receivers: dict[int, HandoverReceiver] = {}
        self.clients: dict[int, list[socket.socket]] = {}
        self.heard: list[messages.ToUser] = []
        self.fault: Exception | None = None
        self.records: list[Record] = []
        self.killed: list[Record] = []

    def start(self, identity: Identity, limits: Limits, folder: UserFolder) -> StartedSupervisor:
        """Starts one, in a thread, as the real one does."""
        if self.fault is not None:
            raise self.fault
        self.starts.append(identity)
        folder.make(identity)
        self.listeners[identity.uid] = folder.listen()
        anyio.from_thread.run_sync(self._open, identity.uid, token=self.token)
        record = started(identity, limits, ["sleep", "600"])
        self.records.append(record)
        folder.note(record)
        return StartedSupervisor(None, record)

    def kill(self, record: Record) -> None:
        self.killed.append(record)
        user_process.kill(record)

    def kill_all(self, record: Record) -> None:
        self.killed.append(record)
        user_process.kill_all(record)

    def end(self, uid: int) -> None:
        """Ends the supervisor: its receiver and its process."""
        self.running[uid].cancel()
        user_process.kill([each for each in self.records if each.identity.uid == uid][-1])

    def _open(self, uid: int) -> None:
        came = self.clients.setdefault(uid, [])
        self.receivers[uid] = HandoverReceiver(self.listeners[uid].detach(), take=came.append, hear=self.heard.append)
        self.tasks.start_soon(self._run, uid)

    async def _run(self, uid: int) -> None:
        with anyio.CancelScope() as scope:
            self.running[uid] = scope
            await self.receivers[uid].run()

    tasks: TaskGroup
    token: EventLoopToken


def count_of_login(uid: int, uids: Sequence[int], least: int) -> int:
    """Counts the ids of a node without subordinate ids; see Logins.count."""
    del least
    return uids.count(uid)


@asynccontextmanager
async def house(
    tmp_path: Path,
    *,
    login_of: Callable[[int], int] = int,
    count_of_login: Callable[[int, Sequence[int], int], int] = count_of_login,
) -> AsyncGenerator[tuple[UserSupervisors, Fakes]]:
    folders = UserFolders(tmp_path / "run", tmp_path / "state")
    folders.make()
    fakes = Fakes()
    try:
        async with anyio.create_task_group() as tasks:
            fakes.tasks, fakes.token = tasks, anyio.lowlevel.current_token()
            with anyio.fail_after(30):
                users = UserSupervisors(
                    folders, SupervisorProcesses(fakes), tasks, login_of=login_of, count_of_login=count_of_login
                )
                yield users, fakes
            tasks.cancel_scope.cancel()
    finally:
        for record in fakes.records:
            user_process.kill(record)
        for clients in fakes.clients.values():
            for client in clients:
                client.close()


async def come(users: UserSupervisors, identity: Identity, limits: Limits = ()) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await users.hand_over(theirs, identity, limits)
