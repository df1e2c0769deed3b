"""Which connections are admitted, handed over and refused, on real sockets?"""

from __future__ import annotations

import os
import pwd
import socket
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.edges.machine.processes.connection_rate_limit import ConnectionRateLimit
from supervisor.edges.machine.processes.peer_identity import ROOT, Identity, Limits
from supervisor.edges.users import connection_dispatcher
from supervisor.edges.users.connection_dispatcher import WAITING_OF_ONE_MAX, ConnectionDispatcher
from supervisor.edges.users.user_admission import Admission
from supervisor.errors import ExhaustedError, HoldfastError

OWN = Identity(os.getuid(), os.getgid(), tuple(sorted(os.getgroups()))) if os.getuid() else ROOT


class House:
    """The receiver behind the dispatcher."""

    def __init__(self) -> None:
        self.came: list[tuple[Identity, Limits]] = []
        self.refusals: list[str] = []
        self.codes: list[int] = []  # exit codes of the refused commands
        self.is_full = False
        self.login_of: Callable[[int], int] = lambda uid: uid
        self.may_go = anyio.Event()
        self.may_go.set()
        self.may_end = anyio.Event()  # refusals
        self.may_end.set()

    async def hand_over(self, client: socket.socket, identity: Identity, limits: Limits) -> None:
        self.came.append((identity, limits))
        await self.may_go.wait()
        if self.is_full:
            raise ExhaustedError("cannot answer: full")
        client.send(b"hello")

    async def refuse(self, client: socket.socket, refusal: HoldfastError) -> None:
        self.refusals.append(str(refusal))
        self.codes.append(refusal.exit_code)
        await self.may_end.wait()


@asynccontextmanager
async def dispatcher_of(house: House, admission: Admission) -> AsyncGenerator[Path]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "control.sock"
        async with anyio.create_task_group() as tasks:
            with connection_dispatcher.bind(path) as listener:
                dispatcher = ConnectionDispatcher(
                    listener, admission=admission, login_of=house.login_of, hand_over=house.hand_over,
                    refuse=house.refuse,
                )  # fmt: skip
                tasks.start_soon(dispatcher.run)
                yield path
                tasks.cancel_scope.cancel()


async def _heard(path: Path) -> bytes:
    async with await anyio.connect_unix(path) as client:
        with anyio.fail_after(10):
            try:
                return await client.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return b""


async def test_a_client_is_handed_over_with_what_the_kernel_says_of_it() -> None:
    house = House()
    async with dispatcher_of(house, Admission(("all",))) as path:
        assert await _heard(path) == b"hello"
    ((identity, limits),) = house.came
    assert identity == OWN
    assert {name for name, _, _ in limits} >= {"NOFILE", "MEMLOCK", "NPROC"}


async def test_a_client_that_cannot_be_served_reads_why() -> None:
    house = House()
    house.is_full = True
    async with dispatcher_of(house, Admission(("all",))) as path:
        assert await _heard(path) == b""
    assert house.refusals == ["cannot answer: full"]
    assert house.codes == [75]


@pytest.mark.skipif(os.geteuid() == 0, reason="root is always let in; see tests/e2e/test_many_users.py")
async def test_a_user_who_is_not_named_is_not_handed_over() -> None:
    house = House()
    async with dispatcher_of(house, Admission(("0",))) as path:
        assert await _heard(path) == b""
    assert (house.came, len(house.refusals)) == ([], 1)


async def test_subordinate_user_ids_count_for_their_login() -> None:
    """A root of tests has no other user id at hand, so that the login is what changes."""
    house = House()
    house.may_go = anyio.Event()
    logins = iter([7] * WAITING_OF_ONE_MAX + [8, 7])
    house.login_of = lambda _: next(logins)
    async with dispatcher_of(house, Admission(("all",))) as path, anyio.create_task_group() as tasks:
        for _ in range(WAITING_OF_ONE_MAX + 1):
            tasks.start_soon(_heard, path)
        while len(house.came) < WAITING_OF_ONE_MAX + 1:
            await anyio.lowlevel.checkpoint()
        assert await _heard(path) == b""  # closed at once
        house.may_go.set()


async def test_refusals_of_one_user_leave_room_for_those_of_others() -> None:
    house = House()
    house.is_full = True
    house.may_end = anyio.Event()
    logins = iter([7] * 10 + [8])
    house.login_of = lambda _: next(logins)
    async with dispatcher_of(house, Admission(("all",))) as path, anyio.create_task_group() as tasks:
        for _ in range(11):
            tasks.start_soon(_heard, path)
        while len(house.came) < 11:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert len(house.refusals) == connection_dispatcher.REFUSED_OF_ONE_MAX + 1
        house.may_end.set()


async def test_one_user_can_keep_so_many_waiting_and_no_more() -> None:
    house = House()
    house.may_go = anyio.Event()
    async with dispatcher_of(house, Admission(("all",))) as path:
        clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(WAITING_OF_ONE_MAX)]
        for client in clients:
            client.connect(str(path))
        assert await _heard(path) == b""  # closed at once
        assert len(house.came) == WAITING_OF_ONE_MAX
        house.may_go.set()
        for client in clients:
            client.settimeout(10)
            assert await anyio.to_thread.run_sync(client.recv, 5) == b"hello"
            client.close()
        assert await _heard(path) == b"hello"


async def test_connections_of_one_login_are_admitted_at_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_dispatcher, "ConnectionRateLimit", lambda: ConnectionRateLimit(2, 0.0))
    house = House()
    logins = iter([7, 7, 7, 8])
    house.login_of = lambda _: next(logins)
    async with dispatcher_of(house, Admission(("all",))) as path:
        assert [await _heard(path) for _ in range(4)] == [b"hello", b"hello", b"", b"hello"]


class _Of(Admission):
    """Takes a root of tests, whom every service admits, for a user of this id."""

    def __init__(self, words: tuple[str, ...], uid: int) -> None:
        super().__init__(words)
        self._uid = uid

    def refusal(self, identity: Identity) -> str:
        return super().refusal(Identity(self._uid, 1, ()))


async def test_a_user_database_that_does_not_answer_delays_a_refusal_once_and_ends_no_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 75 lets a job that waits for the service try again; 1 ends it."""
    may_return, known = threading.Event(), pwd.getpwnam

    def answer(name: str) -> pwd.struct_passwd:
        if name == "alice-of-the-database":
            may_return.wait(30)
            raise KeyError(name)
        return known(name)

    monkeypatch.setattr(pwd, "getpwnam", answer)
    monkeypatch.setattr(connection_dispatcher, "LOOK_UP_S", 0.0)
    monkeypatch.setattr(connection_dispatcher, "LOOK_UP_TIMEOUT_S", 0.2)
    words, house = ("alice-of-the-database", "nobody"), House()
    admission = _Of(words, 54321)
    try:
        async with dispatcher_of(house, admission) as path:
            for number in range(1, 3):
                await _heard(path)
                assert len(house.refusals) == number
            assert house.codes == [75, 75]
            assert "the user database has not answered about alice-of-the-database of --users" in house.refusals[0]
            may_return.set()
            while admission.unanswered:
                await anyio.lowlevel.checkpoint()
            await _heard(path)
            assert house.codes == [75, 75, 1]
        may_return.clear()
        async with dispatcher_of(house, _Of(words, known("nobody").pw_uid)) as path:
            assert await _heard(path) == b"hello"
    finally:
        may_return.set()
