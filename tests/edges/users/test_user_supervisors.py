"""When is a supervisor started, restarted and released? The supervisors are tasks of this process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.peer_identity import ROOT, Identity, Limits
from supervisor.edges.users import supervisor_processes, user_process, user_supervisors
from supervisor.edges.users import user_link_messages as messages
from supervisor.edges.users.supervisor_processes import SupervisorProcesses
from supervisor.edges.users.user_folders import Record, UserFolder, UserFolders
from supervisor.edges.users.user_process import StartedSupervisor
from supervisor.edges.users.user_supervisors import UserSupervisors
from supervisor.errors import ExhaustedError, NotNowError
from tests.edges.users.fake_supervisors import ALICE, BOB, Fakes, come, count_of_login, house

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")


async def test_each_user_gets_one_supervisor_however_many_clients_come(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        async with anyio.create_task_group() as clients:
            for _ in range(5):
                clients.start_soon(come, users, ALICE)
                clients.start_soon(come, users, BOB)
        assert sorted(each.uid for each in fakes.starts) == [54321, 54322]
        assert {uid: len(clients) for uid, clients in fakes.clients.items()} == {54321: 5, 54322: 5}


async def test_one_that_is_gone_is_started_again_by_itself(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        fakes.end(54321)
        while len(fakes.starts) < 2:
            await anyio.lowlevel.checkpoint()
        await come(users, ALICE)
        assert fakes.starts == [ALICE, ALICE]


async def test_one_that_was_let_go_is_started_by_the_next_client_alone(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        fakes.receivers[54321].say_idle()
        while messages.Leave() not in fakes.heard:
            await anyio.lowlevel.checkpoint()
        fakes.end(54321)
        await come(users, ALICE)
        assert fakes.starts == [ALICE, ALICE]


async def test_a_start_that_fails_is_told_to_the_client_and_hurts_nobody_else(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        fakes.fault = NotNowError("cannot start the supervisor of user id 54321: no processes left")
        with pytest.raises(NotNowError, match="no processes left"):
            await come(users, ALICE)
        fakes.fault = None
        await come(users, BOB)
        await come(users, ALICE)


async def test_the_next_service_finds_the_supervisors_of_this_one(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        folders = UserFolders(tmp_path / "run", tmp_path / "state")
        next_one = UserSupervisors(
            folders, SupervisorProcesses(fakes), fakes.tasks, login_of=int, count_of_login=count_of_login
        )
        await next_one.find_again()
        await come(next_one, ALICE)
        assert fakes.starts == [ALICE]
        assert len(fakes.clients[54321]) == 2


async def test_a_later_supervisor_hears_of_the_cordon_too(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await come(users, ROOT)
        await come(users, ALICE)
        fakes.receivers[0].say(messages.Cordon("new cable"))
        while len(fakes.heard) < 2:
            await anyio.lowlevel.checkpoint()
        await come(users, BOB)
        assert fakes.heard == [messages.Cordon("new cable")] * 3


async def test_one_that_is_found_after_the_cordon_has_ended_hears_of_the_end(tmp_path: Path) -> None:
    """Root's process was away as an operator lifted the cordon, and has kept it."""
    kept = list[str]()

    async def keep(reason: str) -> None:
        kept.append(reason)

    async with house(tmp_path) as (users, fakes):
        await come(users, ROOT)
        await come(users, ALICE)
        fakes.receivers[0].say_cordon("")
        folders, processes = UserFolders(tmp_path / "run", tmp_path / "state"), SupervisorProcesses(fakes)
        next_one = UserSupervisors(
            folders, processes, fakes.tasks, login_of=int, count_of_login=count_of_login, cordon="new cable",
            keep_cordon=keep,
        )  # fmt: skip
        await come(next_one, ROOT)
        while not (kept and fakes.heard[-1:] == [messages.Cordon("")]):
            await anyio.lowlevel.checkpoint()
        assert kept == [""]
        fakes.heard.clear()
        await come(next_one, ALICE)
        assert fakes.heard == [messages.Cordon("")]


@asynccontextmanager
async def cordoned(tmp_path: Path) -> AsyncGenerator[tuple[UserSupervisors, Fakes]]:
    async with house(tmp_path) as (users, fakes):
        await come(users, ROOT)
        await come(users, ALICE)
        await _tell(fakes, "new cable", count=2)
        yield users, fakes


async def test_one_that_has_heard_of_the_end_of_a_cordon_hears_of_it_no_more(tmp_path: Path) -> None:
    """A node of that user's job may have cordoned it since."""
    async with cordoned(tmp_path) as (users, fakes):
        await _tell(fakes, "", count=2)
        fakes.end(54321)
        while len(fakes.starts) < 3:
            await anyio.lowlevel.checkpoint()
        await come(users, ALICE)
        await come(users, BOB)
        assert fakes.heard == []


async def test_one_that_was_gone_as_the_cordon_ended_hears_of_the_end_once(tmp_path: Path) -> None:
    async with cordoned(tmp_path) as (users, fakes):
        fakes.fault = NotNowError("no processes left")
        fakes.end(54321)
        with pytest.raises((ExhaustedError, NotNowError)):
            await come(users, ALICE)
        await _tell(fakes, "", count=1)
        fakes.fault = None
        await come(users, ALICE)
        assert fakes.heard == [messages.Cordon("")]
        fakes.end(54321)
        while len(fakes.starts) < 4:
            await anyio.lowlevel.checkpoint()
        await come(users, ALICE)
        assert fakes.heard == [messages.Cordon("")]


async def _tell(fakes: Fakes, reason: str, *, count: int) -> None:
    """An operator cordons the node, or uncordons it; that many supervisors hear of it."""
    fakes.receivers[0].say(messages.Cordon(reason))
    while len(fakes.heard) < count:
        await anyio.lowlevel.checkpoint()
    assert fakes.heard == [messages.Cordon(reason)] * count
    fakes.heard.clear()


async def test_a_next_service_that_knows_of_no_cordon_leaves_that_of_one_user_alone(tmp_path: Path) -> None:
    """A node of that user's job may have asked for it."""
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        folders = UserFolders(tmp_path / "run", tmp_path / "state")
        next_one = UserSupervisors(
            folders, SupervisorProcesses(fakes), fakes.tasks, login_of=int, count_of_login=count_of_login
        )
        await come(next_one, ALICE)
        assert fakes.heard == []


async def test_a_users_word_changes_nothing_for_the_node(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        fakes.receivers[54321].say(messages.Cordon("by a user"))
        await come(users, ALICE)  # it was heard before this was answered
        await come(users, BOB)
        assert fakes.heard == []


async def test_root_reaches_a_users_supervisor_at_a_path_of_its_own(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        path = UserFolders(tmp_path / "run", tmp_path / "state").of(ALICE).control_socket
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (0, 0o600)
        async with await anyio.connect_unix(path):
            while len(fakes.clients[54321]) < 2:
                await anyio.lowlevel.checkpoint()


async def _gone(record: Record) -> None:
    assert await user_process.until_gone(record, 20)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GONE_TIMEOUT_S", "STOPPED_LOOKS_S"):
        monkeypatch.setattr(user_supervisors, name, 1.0)


@pytest.mark.alone
async def test_processes_that_stay_stop_nobody_and_are_killed_before_the_next_is_started(
    tmp_path: Path, soon: None
) -> None:
    """Each of them took one of the 40 threads that all users share."""
    many = [Identity(60_000 + number, 60_000, ()) for number in range(45)]
    async with house(tmp_path) as (users, fakes):
        for each in many:
            await come(users, each)
        for each in many:
            fakes.running[each.uid].cancel()  # its hand-over socket is closed, its process stays
        began_s = anyio.current_time()
        await come(users, BOB)
        assert anyio.current_time() - began_s < 1.0
        left = list(fakes.records[:45])
        for record in left:
            await _gone(record)
        assert {record.pid for record in fakes.killed} == {record.pid for record in left}
        while len(fakes.starts) < 45 + 1 + 45:
            assert sum(user_process.is_running(record) for record in fakes.records) <= 45 + 1
            await anyio.sleep(0.01)


async def test_one_that_floods_the_service_is_killed_and_started_again(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        while not fakes.killed:
            fakes.receivers[54321].say(messages.Idle(7))
            await anyio.lowlevel.checkpoint()
        assert fakes.killed == [fakes.records[0]]
        await _gone(fakes.records[0])
        await come(users, ALICE)


@pytest.mark.parametrize("does", ["ignores it", "is stopped", "has closed its socket"])
async def test_the_end_of_all_waits_for_nobody_without_end(tmp_path: Path, soon: None, does: str) -> None:
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        await come(users, BOB)
        if does == "is stopped":
            await _stop(fakes.records[0])
        elif does == "has closed its socket":
            fakes.running[54321].cancel()
        with anyio.fail_after(10):
            await users.end_all(1.0)
        assert not any(map(user_process.is_running, fakes.records))


async def test_a_watchdog_that_kills_a_stopped_one_meanwhile_has_not_ended_its_jobs(tmp_path: Path) -> None:
    """Its unit would start again, and go on with them, when the service has gone."""
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        await _stop(fakes.records[0])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(users.end_all, 60.0)
            while messages.End() not in fakes.heard:
                await anyio.lowlevel.checkpoint()
            fakes.end(54321)
        assert fakes.killed == [fakes.records[0]]


async def test_one_that_a_watchdog_continues_as_it_kills_it_has_not_ended_its_jobs_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The looks that follow show a process that runs."""
    monkeypatch.setattr(user_supervisors, "STOPPED_LOOKS_S", 0.2)
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        await _stop(fakes.records[0])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(users.end_all, 60.0)
            while messages.End() not in fakes.heard:
                await anyio.lowlevel.checkpoint()
            process_table.send(_entry(fakes.records[0]), signal.SIGCONT)
            await anyio.sleep(3 * user_supervisors.STOPPED_LOOKS_S)
            fakes.end(54321)
        assert fakes.killed == [fakes.records[0]]


async def test_the_end_of_all_ends_the_jobs_of_one_that_has_just_crashed(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        fakes.end(54321)
        await _gone(fakes.records[0])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(users.end_all, 60.0)
            while messages.End() not in fakes.heard:
                await anyio.lowlevel.checkpoint()
            fakes.end(54321)
        assert fakes.starts == [ALICE, ALICE]
        assert fakes.killed == []


async def test_the_end_of_all_starts_each_that_has_crashed_however_often_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_processes, "STARTS_AT_ONCE_MAX", 1)
    async with house(tmp_path) as (users, fakes):
        await come(users, ALICE)
        fakes.end(54321)
        await _gone(fakes.records[0])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(users.end_all, 60.0)
            while messages.End() not in fakes.heard:
                await anyio.lowlevel.checkpoint()
            fakes.end(54321)


async def test_the_news_of_a_cordon_waits_for_no_user(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        await come(users, ROOT)
        await come(users, ALICE)
        await come(users, BOB)
        link = users._users[ALICE.name].link  # pyright: ignore[reportPrivateUsage]
        assert link is not None
        sending = link._sending  # pyright: ignore[reportPrivateUsage] - held as while the socket is full
        async with sending:
            await _tell(fakes, "new cable", count=2)


async def test_the_end_of_a_late_first_start_takes_no_record_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client connected to the late one, which is killed then. Without the record, the next service starts another."""
    monkeypatch.setattr(supervisor_processes, "START_TIMEOUT_S", 0.3)
    may_start, is_late, may_kill, killed, may_end = events = [threading.Event() for _ in range(5)]
    async with house(tmp_path) as (users, fakes):
        start, kill_all = fakes.start, fakes.kill_all

        def slow_start(identity: Identity, limits: Limits, folder: UserFolder) -> StartedSupervisor:
            may_start.wait()
            return start(identity, limits, folder)

        def slow_kill(record: Record) -> None:
            is_late.set()
            may_kill.wait()
            kill_all(record)
            killed.set()
            may_end.wait()

        monkeypatch.setattr(fakes, "start", slow_start)
        monkeypatch.setattr(fakes, "kill_all", slow_kill)
        try:
            with pytest.raises(NotNowError, match="it has not ended within"):
                await come(users, ALICE)
            monkeypatch.setattr(supervisor_processes, "START_TIMEOUT_S", 30.0)
            may_start.set()
            await _until(is_late)
            await come(users, ALICE)
            assert len(fakes.starts) == 1
            may_kill.set()
            await _until(killed)
            fakes.running[ALICE.uid].cancel()
            await anyio.sleep(1.5)  # long enough for a restart that does not wait
            may_end.set()
            await come(users, ALICE)
            await anyio.sleep(0.2)  # for the thread that ended the late one
            assert users._folders.of(ALICE).record() == fakes.records[-1]  # pyright: ignore[reportPrivateUsage]
            assert len(fakes.starts) == 2
        finally:
            for each in events:
                each.set()


async def _until(event: threading.Event) -> None:
    while not event.is_set():
        await anyio.lowlevel.checkpoint()


async def test_nothing_is_kept_of_a_user_whose_supervisor_could_not_be_started(tmp_path: Path) -> None:
    async with house(tmp_path) as (users, fakes):
        fakes.fault = NotNowError("cannot start the supervisor of user id 54321: no processes left")
        with pytest.raises(NotNowError):
            await come(users, ALICE)
        assert users._users == {}  # pyright: ignore[reportPrivateUsage]


async def _stop(record: Record) -> None:
    process_table.send(_entry(record), signal.SIGSTOP)
    while not user_process.is_stopped(record):  # the kernel does it a little later
        await anyio.lowlevel.checkpoint()


def _entry(record: Record) -> process_table.ProcessEntry:
    found = process_table.look_up(record.pid)
    assert found is not None
    return found
