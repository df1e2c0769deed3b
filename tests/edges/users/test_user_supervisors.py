"""When is a supervisor started, restarted and released? The supervisors are tasks of this process."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup

from supervisor.edges.machine.processes.peer_identity import Identity, Limits
from supervisor.edges.users import door_words as words
from supervisor.edges.users.user_folders import Record, UserFolder, UserFolders
from supervisor.edges.users.user_link import OwnDoor
from supervisor.edges.users.user_process import StartedSupervisor
from supervisor.edges.users.user_supervisors import UserSupervisors
from supervisor.errors import NotNowError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")

ALICE, BOB = Identity(54321, 54321, ()), Identity(54322, 54322, ())


class Fakes:
    """Replaces processes: each start puts a door into this process."""

    def __init__(self) -> None:
        self.starts: list[Identity] = []
        self.listeners: dict[int, socket.socket] = {}
        self.running: dict[int, anyio.CancelScope] = {}
        self.doors: dict[int, OwnDoor] = {}
        self.clients: dict[int, list[socket.socket]] = {}
        self.heard: list[words.ToUser] = []
        self.fault: Exception | None = None

    def start(self, identity: Identity, limits: Limits, folder: UserFolder) -> StartedSupervisor:
        """Starts one, in a thread, as the real one does."""
        if self.fault is not None:
            raise self.fault
        self.starts.append(identity)
        folder.make(identity)
        self.listeners[identity.uid] = folder.listen()
        anyio.from_thread.run_sync(self._open, identity.uid)
        record = Record(identity, limits)
        folder.note(record)
        process = subprocess.Popen(["true"])
        process.wait()
        return StartedSupervisor(process, record)

    def _open(self, uid: int) -> None:
        came = self.clients.setdefault(uid, [])
        self.doors[uid] = OwnDoor(self.listeners[uid].detach(), take=came.append, hear=self.heard.append)
        self.tasks.start_soon(self._run, uid)

    async def _run(self, uid: int) -> None:
        with anyio.CancelScope() as scope:
            self.running[uid] = scope
            await self.doors[uid].run()

    tasks: TaskGroup


@asynccontextmanager
async def house(tmp_path: Path) -> AsyncGenerator[tuple[UserSupervisors, Fakes]]:
    folders = UserFolders(tmp_path / "run", tmp_path / "state")
    folders.make()
    fakes = Fakes()
    async with anyio.create_task_group() as tasks:
        fakes.tasks = tasks
        with anyio.fail_after(30):
            yield UserSupervisors(folders, fakes.start, tasks), fakes
        tasks.cancel_scope.cancel()
    for clients in fakes.clients.values():
        for client in clients:
            client.close()


async def _come(users: UserSupervisors, identity: Identity) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await users.hand_over(theirs, identity, ())


async def test_each_user_gets_one_supervisor_however_many_clients_come(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        async with anyio.create_task_group() as clients:
            for _ in range(5):
                clients.start_soon(_come, users, ALICE)
                clients.start_soon(_come, users, BOB)
        assert sorted(each.uid for each in fakes.starts) == [54321, 54322]
        assert {uid: len(clients) for uid, clients in fakes.clients.items()} == {54321: 5, 54322: 5}


async def test_one_that_is_gone_is_started_again_by_itself(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await _come(users, ALICE)
        fakes.running[54321].cancel()
        while len(fakes.starts) < 2:
            await anyio.lowlevel.checkpoint()
        await _come(users, ALICE)
        assert fakes.starts == [ALICE, ALICE]


async def test_one_that_was_let_go_is_started_by_the_next_client_alone(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await _come(users, ALICE)
        fakes.doors[54321].say_idle()
        while words.Leave() not in fakes.heard:
            await anyio.lowlevel.checkpoint()
        fakes.running[54321].cancel()
        await _come(users, ALICE)
        assert fakes.starts == [ALICE, ALICE]


async def test_a_start_that_fails_is_told_to_the_client_and_hurts_nobody_else(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        fakes.fault = NotNowError("cannot start the supervisor of user id 54321: no processes left")
        with pytest.raises(NotNowError, match="no processes left"):
            await _come(users, ALICE)
        fakes.fault = None
        await _come(users, BOB)
        await _come(users, ALICE)


async def test_the_next_service_finds_the_supervisors_of_this_one(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await _come(users, ALICE)
        next_one = UserSupervisors(UserFolders(tmp_path / "run", tmp_path / "state"), fakes.start, fakes.tasks)
        await next_one.find_again()
        await _come(next_one, ALICE)
        assert fakes.starts == [ALICE]
        assert len(fakes.clients[54321]) == 2


async def test_a_later_supervisor_hears_of_the_cordon_too(tmp_path: Path) -> None:
    root = Identity(0, 0, ())
    async with house(tmp_path) as (users, fakes):
        await _come(users, root)
        await _come(users, ALICE)
        fakes.doors[0].say(words.Cordon("new cable"))
        while len(fakes.heard) < 2:
            await anyio.lowlevel.checkpoint()
        await _come(users, BOB)
        assert fakes.heard == [words.Cordon("new cable")] * 3


async def test_a_users_word_changes_nothing_for_the_node(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await _come(users, ALICE)
        fakes.doors[54321].say(words.Cordon("by a user"))
        await _come(users, ALICE)  # it was heard before this was answered
        await _come(users, BOB)
        assert fakes.heard == []


async def test_root_reaches_a_users_supervisor_at_a_path_of_its_own(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await _come(users, ALICE)
        path = UserFolders(tmp_path / "run", tmp_path / "state").of(ALICE).control_socket
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (0, 0o600)
        async with await anyio.connect_unix(path):
            while len(fakes.clients[54321]) < 2:
                await anyio.lowlevel.checkpoint()
