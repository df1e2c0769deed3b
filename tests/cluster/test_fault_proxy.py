"""Does the proxy of the torn networks treat a link as it says?"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from tests.cluster.fault_proxy import Weather, obey, serve


@asynccontextmanager
async def proxied() -> AsyncGenerator[tuple[Weather, SocketStream]]:
    """Yields a connection through the proxy to an echo server."""
    echo = (await anyio.create_tcp_listener(local_host="127.0.0.1")).listeners[0]
    async with echo, anyio.create_task_group() as tasks:
        proxy = (await anyio.create_tcp_listener(local_host="127.0.0.1")).listeners[0]

        async def answer(stream: SocketStream) -> None:
            async with stream:
                async for data in stream:
                    await stream.send(data)

        weather = Weather(Random(1))
        tasks.start_soon(echo.serve, answer)
        port = int(echo.extra(SocketAttribute.local_port))
        tasks.start_soon(serve, weather, proxy, ("127.0.0.1", port))
        async with await anyio.connect_tcp("127.0.0.1", proxy.extra(SocketAttribute.local_port)) as stream:
            await stream.send(b"hello")
            assert await stream.receive() == b"hello"
            yield weather, stream
        tasks.cancel_scope.cancel()


async def test_data_is_delayed_and_stalled():
    async with proxied() as (weather, stream):
        for line, least_s in (("delay 0.1 0.2", 0.2), ("stall 0.5", 0.5)):
            obey(weather, line)
            began_s = anyio.current_time()
            await stream.send(b"x")
            assert await stream.receive() == b"x"
            assert anyio.current_time() - began_s >= least_s


async def test_a_cut_ends_the_connection():
    async with proxied() as (weather, stream):
        obey(weather, "cut")
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()


async def test_a_half_open_connection_swallows_everything():
    async with proxied() as (weather, stream):
        obey(weather, "half-open")
        await stream.send(b"x")
        with pytest.raises(TimeoutError), anyio.fail_after(0.3):
            await stream.receive()


async def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="cannot do 'rain' to a link"):
        obey(Weather(Random(1)), "rain")
