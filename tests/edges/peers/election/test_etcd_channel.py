"""Is another member asked if one is gone, silent, slow or unavailable, and are connections and addresses kept?"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from supervisor.edges.machine.processes.socket_stream import SocketStream
from supervisor.edges.peers.election import etcd_channel
from supervisor.edges.peers.election.etcd_channel import EtcdChannel
from supervisor.edges.peers.election.etcd_member_connection import Endpoint
from supervisor.edges.peers.transport.name_lookup import Found, look_up
from supervisor.edges.rpc.grpc_connection import Call
from supervisor.edges.rpc.grpc_server import GrpcServer
from supervisor.edges.rpc.statuses import CallError, Status
from tests.edges.peers.election.test_etcd_member_connection import silent_host

LIMIT_S = 10.0
GONE = Endpoint("127.0.0.1", 1)


class FakeMember:
    """A member on a port of its own that answers with its name, and does what a test wants."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.endpoint = Endpoint("127.0.0.1", int(self.listener.getsockname()[1]))
        self.accepted = 0
        self.calls = 0
        self.greets_after = anyio.Event()
        self.greets_after.set()
        self.does: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint
        self._server = GrpcServer({b"/ask": self._answer}, calls_max=8, message_bytes_max=1_000)

    async def _answer(self, call: Call) -> None:
        self.calls += 1
        await call.receive()
        await self.does()
        await call.send(self.name.encode())
        await call.receive()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.wait_readable(self.listener)
                client, _ = self.listener.accept()
                client.setblocking(False)
                self.accepted += 1
                tasks.start_soon(self._serve, client)

    async def _serve(self, client: socket.socket) -> None:
        with client:
            await self.greets_after.wait()
            await self._server.serve(SocketStream(client), client)


@asynccontextmanager
async def members(count: int) -> AsyncGenerator[tuple[EtcdChannel, list[FakeMember]]]:
    fakes = [FakeMember(f"m{number}") for number in range(count)]
    channel = EtcdChannel([each.endpoint for each in fakes], None)
    try:
        async with anyio.create_task_group() as tasks:
            for each in fakes:
                tasks.start_soon(each.run)
            with anyio.fail_after(LIMIT_S):
                yield channel, fakes
            tasks.cancel_scope.cancel()
    finally:
        channel.close()
        for each in fakes:
            each.listener.close()


async def ask(channel: EtcdChannel, timeout_s: float = LIMIT_S) -> str:
    return (await channel.unary("/ask", b"x", timeout_s=timeout_s)).decode()


async def unavailable() -> None:
    raise CallError(Status.UNAVAILABLE, "etcdserver: no leader")


async def overloaded() -> None:
    raise CallError(Status.RESOURCE_EXHAUSTED, "etcdserver: too many requests")


async def refusing() -> None:
    raise CallError(Status.PERMISSION_DENIED, "etcdserver: permission denied")


async def test_one_member_is_asked_as_long_as_it_answers() -> None:
    async with members(3) as (channel, fakes):
        assert {await ask(channel) for _ in range(20)} == {"m0"}
        fakes[0].does = refusing
        with pytest.raises(CallError, match="permission denied"):
            await ask(channel)
        fakes[0].does = anyio.lowlevel.checkpoint
        assert await ask(channel) == "m0"
        assert [each.accepted for each in fakes] == [1, 0, 0]


async def test_a_member_that_is_gone_or_silent_costs_a_moment() -> None:
    async with members(2) as (_, (silent, sound)):
        channel = EtcdChannel([GONE, silent.endpoint, sound.endpoint], None)
        silent.greets_after = anyio.Event()
        begun_s = time.monotonic()
        assert [await ask(channel), await ask(channel)] == ["m1", "m1"]
        assert time.monotonic() - begun_s < 2.0
        assert silent.accepted == 1
        channel.close()


@pytest.mark.parametrize("does", [unavailable, overloaded, anyio.sleep_forever])
async def test_after_a_member_that_is_unavailable_overloaded_or_slow_the_next_is_asked(
    does: Callable[[], Awaitable[None]],
) -> None:
    async with members(2) as (channel, fakes):
        assert await ask(channel) == "m0"
        fakes[0].does = does
        with pytest.raises(CallError) as failed:
            await ask(channel, timeout_s=0.6)
        assert failed.value.status in etcd_channel.CANNOT_SERVE
        assert fakes[0].calls == 2, "no call is repeated"
        assert await ask(channel) == "m1"
        fakes[0].does, fakes[1].does = anyio.lowlevel.checkpoint, unavailable
        with pytest.raises(CallError, match="no leader"):
            await ask(channel)
        assert await ask(channel) == "m0"
        assert [each.accepted for each in fakes] == [1, 1], "connections stay open"


async def test_a_caller_that_gives_a_call_up_soon_says_nothing_about_the_member() -> None:
    async with members(2) as (channel, fakes):
        assert await ask(channel) == "m0"
        fakes[0].does = anyio.sleep_forever
        with anyio.move_on_after(0.05):
            await ask(channel)
        fakes[0].does = anyio.lowlevel.checkpoint
        assert await ask(channel) == "m0"
        fakes[0].does = anyio.sleep_forever
        with anyio.move_on_after(0.6):  # as a renewal of a lead does
            await ask(channel)
        assert await ask(channel) == "m1"


async def test_a_connection_that_is_being_made_outlives_its_calls() -> None:
    async with members(1) as (channel, (fake,)):
        fake.greets_after = anyio.Event()
        for _ in range(5):
            with pytest.raises(CallError, match=r"no member has answered within 0.02 s"):
                await ask(channel, timeout_s=0.02)
        fake.greets_after.set()
        assert await ask(channel) == "m0"
        assert fake.accepted == 1


async def first_answer(channel: EtcdChannel, connect_s: float = LIMIT_S) -> bytes | None:
    async with channel.call("/ask", connect_s=connect_s) as call:
        await call.send(b"x")
        return await call.receive()


async def test_a_stream_ends_with_its_member_and_begins_at_the_next() -> None:
    async with members(2) as (channel, fakes):
        fakes[0].does = unavailable
        with pytest.raises(CallError, match="no leader"):
            await first_answer(channel)
        async with channel.call("/ask", connect_s=LIMIT_S) as call:
            await call.send(b"x")
            assert await call.receive() == b"m1"
            assert await ask(channel) == "m1", "beside it"
        channel.close()
        for each in fakes:
            each.greets_after = anyio.Event()
        with pytest.raises(CallError, match=r"no member has answered within 0.1 s"):
            await first_answer(channel, connect_s=0.1)


async def test_each_member_that_can_not_be_reached_is_named() -> None:
    channel = EtcdChannel([GONE, Endpoint("127.0.0.2", 1)], None)
    with pytest.raises(CallError) as told:
        await ask(channel)
    assert str(told.value) == "; ".join(f"cannot reach 127.0.0.{number}:1: connection refused" for number in (1, 2))


async def test_names_keep_their_addresses_while_nobody_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_channel, "LOOK_UP_AGAIN_S", 0.0)
    addresses: list[str] = []
    asked: list[str | None] = []

    async def found(host: str | None, port: int, *, kind: socket.SocketKind) -> list[Found]:
        asked.append(host)
        if not addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [each for address in addresses for each in await look_up(address, port, kind=kind)]

    monkeypatch.setattr(etcd_channel, "look_up", found)
    async with members(1) as (_, (fake,)):
        channel = EtcdChannel([Endpoint("etcd.cluster", fake.endpoint.port)], None)
        with pytest.raises(CallError, match=r"^cannot look up etcd.cluster: Temporary failure in name resolution$"):
            await ask(channel)
        addresses = ["127.0.0.9"]
        with pytest.raises(CallError, match=r"^cannot reach etcd.cluster:[0-9]+: connection refused$"):
            await ask(channel)
        addresses = []
        with pytest.raises(CallError, match=r"^cannot reach etcd.cluster:[0-9]+: connection refused$"):
            await ask(channel)
        addresses = ["127.0.0.9", "127.0.0.1"]
        assert [await ask(channel), await ask(channel)] == ["m0", "m0"]
        assert len(asked) == 4, "it is looked up again only if nobody answers"
        channel.close()


async def test_a_name_is_looked_up_again_while_its_old_address_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent host fails no connection: each call is given up before that."""
    monkeypatch.setattr(etcd_channel, "LOOK_UP_AGAIN_S", 0.0)
    async with members(2) as (_, (old, new)):
        old.greets_after = anyio.Event()
        member = old

        async def found(host: str | None, port: int, *, kind: socket.SocketKind) -> list[Found]:
            return await look_up(member.endpoint.host, member.endpoint.port, kind=kind)

        monkeypatch.setattr(etcd_channel, "look_up", found)
        channel = EtcdChannel([Endpoint("etcd.cluster", old.endpoint.port)], None)
        with pytest.raises(CallError, match="no member has answered"):
            await ask(channel, timeout_s=0.2)
        member = new
        assert await ask(channel, timeout_s=2.0) == "m1"
        channel.close()


async def test_members_that_change_while_a_call_connects_end_it_and_disturb_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file descriptor that is closed while it is waited for is given to the next socket."""
    with silent_host() as silent:
        async with members(1) as (_, (sound,)):
            channel = EtcdChannel([silent.endpoint], None)
            async with anyio.create_task_group() as tasks:

                async def first() -> None:
                    with pytest.raises(CallError, match="is not a member any more"):
                        await ask(channel)

                for _ in range(2):  # the other one waits for the same connection
                    tasks.start_soon(first)
                await anyio.sleep(0.1)
                channel.move_to([sound.endpoint])
                assert await ask(channel) == "m0"
            channel.close()


async def test_only_a_host_that_says_so_refuses() -> None:
    with silent_host() as silent:
        for endpoints, is_refused in (([GONE], True), ([silent.endpoint], False), ([GONE, silent.endpoint], False)):
            channel = EtcdChannel(endpoints, None)
            assert not channel.is_refused, "nobody was asked"
            with pytest.raises(CallError):
                await ask(channel, timeout_s=0.7)
            assert channel.is_refused is is_refused
            channel.close()
    async with members(1) as (channel, _):
        assert await ask(channel) == "m0"
        assert not channel.is_refused


async def test_an_address_of_a_kind_that_this_node_lacks_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(host: str | None, port: int, *, kind: socket.SocketKind) -> list[Found]:
        no_way = await look_up("255.255.255.255", port, kind=kind)
        return [*no_way, *(await look_up("127.0.0.1", port, kind=kind) if host == "both" else [])]

    monkeypatch.setattr(etcd_channel, "look_up", found)
    for host in ("both", "one"):
        channel = EtcdChannel([Endpoint(host, 1)], None)
        with pytest.raises(CallError, match="network is unreachable"):
            await ask(channel)
        assert channel.is_refused is (host == "both")
        channel.close()


async def test_names_that_are_not_answered_cost_a_call_little_while_addresses_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(etcd_channel, "LOOK_UP_AGAIN_S", 0.0)
    is_silent = False

    async def found(host: str | None, port: int, *, kind: socket.SocketKind) -> list[Found]:
        if is_silent:
            await anyio.sleep_forever()
        return await look_up("127.0.0.1", port, kind=kind)

    monkeypatch.setattr(etcd_channel, "look_up", found)
    async with members(8) as (_, fakes):
        channel = EtcdChannel([Endpoint(f"etcd-{at}", fake.endpoint.port) for at, fake in enumerate(fakes)], None)
        await ask(channel)
        is_silent = channel._is_outdated = True  # pyright: ignore[reportPrivateUsage]
        begun_s = anyio.current_time()
        await ask(channel)
        assert anyio.current_time() - begun_s < 5 * etcd_channel.LOOK_UP_S, "they are looked up at the same time"
        channel.close()
