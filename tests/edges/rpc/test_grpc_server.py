"""Do all connections of a service share its bounds, and end with it?"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from supervisor.edges.machine.processes.socket_stream import SocketStream
from supervisor.edges.rpc.grpc_client import GrpcClient
from supervisor.edges.rpc.grpc_connection import Call
from supervisor.edges.rpc.grpc_server import GrpcServer
from supervisor.edges.rpc.statuses import CallError, Status

LIMIT_S = 10.0


async def hang(call: Call) -> None:
    assert call.client is not None
    await call.send(await call.receive() or b"")
    await anyio.sleep_forever()


@asynccontextmanager
async def serving() -> AsyncGenerator[tuple[GrpcServer, list[GrpcClient]]]:
    server = GrpcServer({b"/hang": hang}, calls_max=1, message_bytes_max=1_000)
    pairs = [socket.socketpair() for _ in range(2)]
    try:
        async with anyio.create_task_group() as tasks:
            for mine, other in pairs:
                mine.setblocking(False)
                other.setblocking(False)
                tasks.start_soon(server.serve, SocketStream(other), other)
            yield server, [GrpcClient(SocketStream(mine), name="S", message_bytes_max=1_000) for mine, _ in pairs]
            tasks.cancel_scope.cancel()
    finally:
        for mine, other in pairs:
            mine.close()
            other.close()


async def test_calls_of_all_connections_are_counted_together() -> None:
    async with serving() as (_, (first, second)):
        with anyio.fail_after(LIMIT_S), first.call("/hang") as call:
            await call.send(b"x")
            assert await call.receive() == b"x"
            with pytest.raises(CallError, match="1 calls are in progress") as refused:
                await second.unary("/hang", b"x", timeout_s=LIMIT_S)
            assert refused.value.status is Status.RESOURCE_EXHAUSTED


async def test_its_end_is_that_of_all_connections() -> None:
    async with serving() as (server, clients):
        for client in clients:
            await client.until_greeted()
        server.end()
        with anyio.fail_after(LIMIT_S):
            await server.until_gone()
            mine, other = socket.socketpair()
            with mine, other:
                await server.serve(SocketStream(other), other)  # too late
        for client in clients:
            with pytest.raises(CallError) as ended:
                await client.unary("/hang", b"x", timeout_s=LIMIT_S)
            assert ended.value.status is Status.UNAVAILABLE
