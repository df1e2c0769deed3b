"""A descriptor that the loop has closed is not closed once more: its number may be another file's by then."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
import pytest

from supervisor.edges.machine.own_process.handed_socket import handed


class Ending(asyncio.Protocol):
    """Ends its connection as soon as there is one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


async def _of_one_that_ends_at_once(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await handed(sock, loop.create_connection(Ending, sock=sock))


async def _of_one_that_is_accepted_and_ends_at_once(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await handed(sock, loop.connect_accepted_socket(Ending, sock))


async def _of_one_that_is_cancelled(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await handed(sock, cast("Awaitable[Any]", loop.create_connection(asyncio.Protocol, sock=sock)))


@pytest.mark.parametrize("is_uvloop", [True, False])
@pytest.mark.parametrize(
    "give", [_of_one_that_ends_at_once, _of_one_that_is_accepted_and_ends_at_once, _of_one_that_is_cancelled]
)
def test_the_next_file_with_its_number_stays_open(
    give: Callable[[socket.socket], Awaitable[None]], *, is_uvloop: bool
) -> None:
    async def play() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            number = ours.fileno()
            await give(ours)
            for _ in range(3):
                await asyncio.sleep(0)
            file = os.open("/dev/null", os.O_RDONLY)
            del ours
            gc.collect()
            assert file == number, "the connection has been closed"
            os.close(file)  # raises if somebody else has closed it

    anyio.run(play, backend_options={"use_uvloop": is_uvloop})
