"""A process that sends notices a server that stands still, and sends what has no receipt over the next connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from holdfast_wire import log_frames
from holdfast_wire.log_frames import Hello, Message, Parting, Terms, Welcome
from holdfast_wire.log_pieces import Piece, Receipt

from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.edges.peers.transport.preamble import CONNECTS_HERE
from supervisor.programs.log_service import log_hello_exchange, upstream
from tests.edges.peers.transport.test_cluster_line import until
from tests.programs.log_service import crowd

LIMIT_S = 30.0


class Server:
    """Welcomes everybody, and keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.heard: list[list[Message]] = []

    def make(self) -> asyncio.Protocol:
        return _Called(self)

    def say(self, *messages: Message) -> None:
        self.lines[-1].send(*map(log_frames.encode, messages))

    def pieces(self) -> list[Piece]:
        return [each for each in self.heard[-1] if isinstance(each, Piece)] if self.heard else []


class _Called(asyncio.Protocol):
    """Takes the kind that comes before the first frame."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._line = Line(greeting=log_hello_exchange.greeting())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._line.connection_made(transport)
        heard: list[Message] = []
        self._server.lines.append(self._line)
        self._server.heard.append(heard)

        def hear(payload: bytes) -> None:
            heard.append(log_frames.decode(payload))
            if isinstance(heard[-1], Hello):
                self._line.send(log_frames.encode(Welcome()))

        self._line.listen(hear, lambda _: None, lambda: None)

    def data_received(self, data: bytes) -> None:
        self._line.data_received(data.removeprefix(CONNECTS_HERE))

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.connection_lost(exc)


@asynccontextmanager
async def called() -> AsyncGenerator[tuple[Server, crowd.Node]]:
    made = Server()
    with anyio.fail_after(LIMIT_S):
        listener = await asyncio.get_running_loop().create_server(made.make, "127.0.0.1", 0)
        async with crowd.nodes(1, f"127.0.0.1:{listener.sockets[0].getsockname()[1]}") as (node,):
            yield made, node
        for line in made.lines:
            line.end("the test is over")
        listener.close()
        await listener.wait_closed()


async def test_what_has_no_receipt_is_sent_again_and_no_more_at_once_than_the_server_takes():
    async with called() as (server, node):
        await node.until_connected()
        await until(lambda: server.heard[0])
        server.say(Terms(window_bytes=1))
        await until(lambda: node.relay.window_bytes == 1)
        node.say(1)
        node.say(1)
        await until(server.pieces)
        assert [each.position for each in server.pieces()] == [0]
        server.say(Receipt(1, crowd.LINE_BYTES))
        await until(lambda: len(server.pieces()) == 2)
        server.lines[0].end("it is killed")
        await until(lambda: len(server.lines) == 2 and server.pieces())
        assert [each.position for each in server.pieces()] == [crowd.LINE_BYTES]


async def test_a_server_that_stands_still_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upstream, "SILENCE_S", 0.2)
    async with called() as (server, node):
        await node.until_trouble("cannot be reached: it does not answer")
        await until(lambda: len(server.lines) > 1)


async def test_nonsense_of_a_server_ends_the_connection():
    async with called() as (server, node):
        await node.until_connected()
        server.lines[0].send(b"?")
        await node.until_trouble("can't be read")


async def test_it_parts_once_everything_has_its_receipt():
    async with called() as (server, node):
        node.say(1)
        await until(server.pieces)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.upstream.part)
            assert Parting() not in [each for each in server.heard[0] if type(each) is Parting]
            server.say(Receipt(1, crowd.LINE_BYTES))
            await until(lambda: [each for each in server.heard[0] if type(each) is Parting])
            server.lines[0].end("it has nothing more to send", says_all=True)
