"""Starts and kills of users' supervisors: who waits for whom?"""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import pytest

from supervisor.edges.machine.processes.peer_identity import Identity, Limits
from supervisor.edges.users import supervisor_processes
from supervisor.edges.users.supervisor_processes import STARTS_AT_ONCE_MAX, SupervisorProcesses
from supervisor.edges.users.user_folders import Record, UserFolder
from supervisor.edges.users.user_process import StartedSupervisor
from supervisor.errors import ExhaustedError, NotNowError

ALICE, BOB = 54321, 54322
FOLDER = UserFolder(Path(), Path())


class Fakes:
    """Starts nothing; the starts of the users in `slow` take as long as they are in it."""

    def __init__(self) -> None:
        self.slow: dict[int, threading.Event] = {}
        self.starts: list[int] = []
        self.killed: list[int] = []
        self.ended: list[int] = []  # with all that they have started

    def start(self, identity: Identity, limits: Limits, folder: UserFolder) -> StartedSupervisor:
        self.starts.append(identity.uid)
        if identity.uid in self.slow:
            self.slow[identity.uid].wait()
        return StartedSupervisor(None, Record(identity, limits))

    def kill(self, record: Record) -> None:
        self.killed.append(record.identity.uid)

    def kill_all(self, record: Record) -> None:
        self.ended.append(record.identity.uid)
        self.slow[record.identity.uid].wait()


async def _started(processes: SupervisorProcesses, uid: int, login: int, *, is_first: bool = True) -> None:
    with anyio.fail_after(20):
        await processes.start(Identity(uid, uid, ()), (), FOLDER, login, is_first=is_first)


async def test_starts_of_one_login_are_bounded() -> None:
    fakes = Fakes()
    processes = SupervisorProcesses(fakes)
    for _ in range(int(STARTS_AT_ONCE_MAX)):
        await _started(processes, ALICE, ALICE)
    with pytest.raises(ExhaustedError, match="supervisors of this login were started too often; try again in 5 s"):
        await _started(processes, 100_000, ALICE)
    assert len(fakes.starts) == STARTS_AT_ONCE_MAX
    await _started(processes, BOB, BOB)


async def test_restarts_of_one_supervisor_are_bounded() -> None:
    fakes = Fakes()
    processes = SupervisorProcesses(fakes)
    for _ in range(int(STARTS_AT_ONCE_MAX)):
        await _started(processes, ALICE, ALICE, is_first=False)
    with pytest.raises(ExhaustedError, match="started too often"):
        await _started(processes, ALICE, ALICE, is_first=False)
    await _started(processes, 100_000, ALICE, is_first=False)


async def test_a_start_that_hangs_is_abandoned_and_delays_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes()
    may_go = fakes.slow[ALICE] = threading.Event()
    processes = SupervisorProcesses(fakes)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_started, processes, ALICE, ALICE)
        for uid in range(60_000, 60_060):  # more than there are threads for all
            await _started(processes, uid, uid)
        may_go.set()
    fakes.slow[ALICE] = threading.Event()
    monkeypatch.setattr(supervisor_processes, "START_TIMEOUT_S", 0.1)
    with pytest.raises(
        NotNowError, match=r"cannot start the supervisor of user id 54321: it has not ended within 0\.1"
    ):
        await _started(processes, ALICE, ALICE)
    with pytest.raises(NotNowError, match="1 earlier calls are stuck"):
        await _started(processes, 100_000, ALICE)
    await _started(processes, BOB, BOB)
    fakes.slow[ALICE].set()
    while not fakes.ended:  # it came too late
        await anyio.lowlevel.checkpoint()
    assert (fakes.ended, fakes.killed) == ([ALICE], [])


async def test_a_kill_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes()
    fakes.slow[ALICE] = threading.Event()
    monkeypatch.setattr(supervisor_processes, "KILL_TIMEOUT_S", 0.1)
    with anyio.fail_after(20):
        assert await SupervisorProcesses(fakes).kill_all(Record(Identity(ALICE, ALICE, ()), ()))
    fakes.slow[ALICE].set()


async def test_a_first_start_that_comes_too_late_is_ended_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record would have the next service start a supervisor that has no jobs, and that nobody asked for."""
    fakes, folder = Fakes(), UserFolder(tmp_path, tmp_path)
    may_go = fakes.slow[ALICE] = threading.Event()
    processes = SupervisorProcesses(fakes)
    monkeypatch.setattr(supervisor_processes, "START_TIMEOUT_S", 0.1)
    alice = Identity(ALICE, ALICE, ())
    with pytest.raises(NotNowError):
        await processes.start(alice, (), folder, ALICE, is_first=True)
    processes.forget(ALICE)
    with pytest.raises(NotNowError, match="1 earlier calls are stuck"):
        await processes.start(alice, (), folder, ALICE, is_first=True)
    folder.note(Record(alice, ()))
    may_go.set()
    with anyio.fail_after(20):
        while folder.record() is not None:
            await anyio.lowlevel.checkpoint()
    assert (fakes.ended, fakes.killed) == ([ALICE], [])
