"""Is a peer that goes at any moment an end, and no error?"""

from __future__ import annotations

import socket

import anyio
import pytest

from supervisor.edges.machine.processes.socket_stream import SocketStream


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    mine, other = socket.socketpair()
    mine.setblocking(False)
    return mine, other


async def test_what_was_sent_arrives_then_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    mine, other = pair
    with mine, other:
        other.send(b"last words")
        other.close()
        stream = SocketStream(mine)
        assert await stream.receive() == b"last words"
        assert await stream.receive() == b""
        assert not await stream.send(b"x")


async def test_more_than_the_kernel_holds_is_sent_as_the_peer_reads(pair: tuple[socket.socket, socket.socket]) -> None:
    mine, other = pair
    with mine, other:
        other.setblocking(False)
        got = bytearray()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(SocketStream(mine).send, bytes(2_000_000))
            while len(got) < 2_000_000:
                got += await SocketStream(other).receive()


async def test_a_connection_that_is_reset_is_an_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = socket.create_connection(server.getsockname())
        mine, _ = server.accept()
    with mine:
        mine.setblocking(False)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        other.close()
        assert await SocketStream(mine).receive() == b""
