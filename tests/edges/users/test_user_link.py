"""Both ends of the link between root's process and a user's supervisor, over a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from supervisor.edges.users import user_link
from supervisor.edges.users import user_link_messages as messages
from supervisor.edges.users.user_folders import UserFolder
from supervisor.edges.users.user_link import HandoverReceiver, UserLink
from tests.edges.workers.worker_side import until


class Supervisor:
    """The user's end."""

    def __init__(self, listener: socket.socket) -> None:
        self.clients: list[socket.socket] = []
        self.heard: list[messages.ToUser] = []
        self.news = anyio.Event()
        self.receiver = HandoverReceiver(listener.detach(), take=self.clients.append, hear=self._hear)

    def _hear(self, word: messages.ToUser) -> None:
        self.heard.append(word)
        self.news.set()


@asynccontextmanager
async def linked(tmp_path: Path) -> AsyncGenerator[tuple[UserLink, Supervisor]]:
    folder = UserFolder(tmp_path, tmp_path)
    supervisor = Supervisor(folder.listen())
    link = UserLink(folder)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.receiver.run)
        tasks.start_soon(link.hear)
        with anyio.fail_after(20):
            yield link, supervisor
        tasks.cancel_scope.cancel()


async def test_a_connection_is_handed_over_with_the_credentials_of_its_client(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    async with linked(tmp_path) as (link, supervisor):
        assert await link.give(theirs)
        theirs.close()
        (client,) = supervisor.clients
        client.send(b"from the supervisor")
        assert ours.recv(100) == b"from the supervisor"
        assert not os.get_inheritable(client.fileno())  # no program of a job inherits it
        client.close()
    ours.close()


async def test_orders_arrive(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, supervisor):
        await link.tell(messages.Cordon("new cable"))
        await supervisor.news.wait()
        assert supervisor.heard == [messages.Cordon("new cable")]


async def test_a_cordon_that_came_while_roots_process_was_away_is_reported_to_the_next_one(tmp_path: Path) -> None:
    folder, reasons = UserFolder(tmp_path, tmp_path), list[str]()
    supervisor = Supervisor(folder.listen())
    supervisor.receiver.say_cordon("new cable")
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.receiver.run)
            for _ in range(2):
                link = UserLink(folder, on_cordon=reasons.append)
                tasks.start_soon(link.hear)
                await until(lambda: len(reasons) == 1)
                assert reasons.pop() == "new cable"
            supervisor.receiver.say_cordon("")
            await until(lambda: reasons == [""])
            tasks.cancel_scope.cancel()


async def test_an_idle_supervisor_is_let_go_and_takes_nothing_more(tmp_path: Path) -> None:
    _, theirs = pair = socket.socketpair()
    async with linked(tmp_path) as (link, supervisor):
        assert await link.give(theirs)
        supervisor.receiver.say_idle()
        await supervisor.news.wait()
        assert supervisor.heard == [messages.Leave()]
        assert link.was_let_go
        for client in (*pair, *supervisor.clients):
            client.close()


async def test_one_that_is_idle_no_more_stays(tmp_path: Path) -> None:
    """It reported that before it learned of a client on the way."""
    _, theirs = pair = socket.socketpair()
    async with linked(tmp_path) as (link, supervisor):
        assert await link.give(theirs)
        supervisor.receiver.say(messages.Idle(0))
        assert await link.give(theirs)
        assert not link.was_let_go
        assert supervisor.heard == []
        for client in (*pair, *supervisor.clients):
            client.close()


async def test_nobody_at_the_socket_is_an_error_at_once(tmp_path: Path) -> None:
    folder = UserFolder(tmp_path, tmp_path)
    folder.listen().close()
    with pytest.raises(ConnectionRefusedError):
        UserLink(folder)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"type":"take","number":1}',
        b'{"type":"taken"}',
        b"[" * 4000,
        b'{"type":"cordon","reason":"\xff"}',
        b'{"type":"\xff"}',
        b'{"type":"cordon","reason":' + b"[" * 4000,
    ],
)
def test_root_believes_no_nonsense(nonsense: bytes):
    assert messages.read_by_root(nonsense) is None
    assert messages.read_by_user(nonsense) in (None, messages.Take(1))


async def test_nonsense_of_a_supervisor_ends_nothing(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    folder = UserFolder(tmp_path, tmp_path)
    listener = folder.listen()
    link = UserLink(folder)
    other, _ = listener.accept()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.hear)
        for nonsense in (
            b"\xff",
            b'{"type":"idle\xff"}',
            b'{"type":"taken","number":99}',
            b'{"type":"idle","taken":5}',
        ):
            other.send(nonsense)

        async def answer() -> None:
            await anyio.wait_readable(other)
            data, descriptors, _, _ = socket.recv_fds(other, 4096, 1)
            assert messages.read_by_user(data) == messages.Take(1)
            os.close(descriptors[0])
            other.send(messages.encode(messages.Taken(1)))

        tasks.start_soon(answer)
        with anyio.fail_after(20):
            assert await link.give(theirs)
        tasks.cancel_scope.cancel()
    for each in (ours, theirs, listener, other):
        each.close()


@asynccontextmanager
async def stranger(tmp_path: Path) -> AsyncGenerator[tuple[UserLink, socket.socket]]:
    """Yields a link, and the other end of it, which does what it likes."""
    folder = UserFolder(tmp_path, tmp_path)
    with folder.listen() as listener:
        link = UserLink(folder)
        other, _ = listener.accept()
        with other:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(link.hear)
                with anyio.fail_after(20):
                    yield link, other
                tasks.cancel_scope.cancel()


async def test_one_that_sends_without_end_is_served_no_longer(tmp_path: Path) -> None:
    async with stranger(tmp_path) as (link, other):
        with suppress(BrokenPipeError):
            while True:
                await anyio.wait_writable(other)
                other.send(messages.encode(messages.Idle(7)))
        assert link.fault == "it sends messages without end"
        assert link.has_ended


async def test_words_that_answer_something_are_no_flood(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, supervisor):
        for _ in range(3 * int(user_link.STRAYS_AT_ONCE_MAX)):
            with socket.socket(socket.AF_UNIX) as client:
                assert await link.give(client)
        for client in supervisor.clients:
            client.close()
        assert not link.fault


async def test_connections_that_nobody_takes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is in the socket's queue, which would be full at some time."""
    monkeypatch.setattr(user_link, "TAKE_TIMEOUT_S", 0.01)
    async with stranger(tmp_path) as (link, other):
        with socket.socket(socket.AF_UNIX) as client:
            for _ in range(user_link.UNTAKEN_MAX + 10):
                assert not await link.give(client)
        other.setblocking(False)
        came = 0
        with suppress(BlockingIOError):
            while True:
                _, descriptors, _, _ = socket.recv_fds(other, 4096, 1)
                os.close(descriptors[0])
                came += 1
        assert came == user_link.UNTAKEN_MAX


@pytest.mark.parametrize("is_idle", [False, True])
async def test_one_that_does_not_do_what_it_was_asked_is_served_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_idle: bool
) -> None:
    monkeypatch.setattr(user_link, "STUCK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(user_link, "LEAVE_TIMEOUT_S", 0.2)
    async with stranger(tmp_path) as (link, other):
        with socket.socket(socket.AF_UNIX) as client:
            if is_idle:
                other.send(messages.encode(messages.Idle(0)))
                await link.ended.wait()
            else:
                assert not await link.give(client)
        assert link.fault == ("it was let go, and stays" if is_idle else "it takes no connection")


async def test_many_that_wait_for_a_full_socket_break_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks may not wait for one socket: the second one's error ended the service."""
    monkeypatch.setattr(user_link, "TAKE_TIMEOUT_S", 0.3)
    async with stranger(tmp_path) as (link, _):
        async with anyio.create_task_group() as tasks:
            for _ in range(2_000):
                tasks.start_soon(link.tell, messages.Cordon("x" * 2_000))
        assert not link.has_ended
