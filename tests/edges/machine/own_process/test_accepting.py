"""Connections are accepted in turns; without a free descriptor they wait, and nothing ends or spins."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.edges.machine.own_process import accepting

CLIENTS = accepting.AT_ONCE_MAX + 3


@pytest.fixture
def listener(tmp_path: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.setblocking(False)
        made.bind(str(tmp_path / "s"))
        made.listen(CLIENTS)
        yield made


def connected(listener: socket.socket) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(listener.getsockname())
    return client


@contextmanager
def without_descriptors() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as held:
        lowest_free = os.open(os.devnull, os.O_RDONLY)
        held.callback(os.close, lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.anyio
async def test_others_have_a_turn_in_a_flood(listener: socket.socket) -> None:
    taken: list[int] = []
    turns: list[int] = []

    async def take() -> None:
        async for client in accepting.connections(listener):
            assert client.gettimeout() == 0
            taken.append(client.fileno())
            client.close()

    with ExitStack() as clients:
        for _ in range(CLIENTS):
            clients.enter_context(connected(listener))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            with anyio.fail_after(10):
                while len(taken) < CLIENTS:
                    await anyio.lowlevel.checkpoint()
                    turns.append(len(taken))
            tasks.cancel_scope.cancel()
    assert accepting.AT_ONCE_MAX in turns


@pytest.mark.anyio
async def test_without_a_free_descriptor_it_tells_and_waits_and_then_goes_on(listener: socket.socket) -> None:
    told: list[OSError] = []
    arrived: list[socket.socket] = []
    came = anyio.Event()

    async def take() -> None:
        async for client in accepting.connections(listener, told.append):
            arrived.append(client)
            came.set()

    with connected(listener):
        async with anyio.create_task_group() as tasks:
            with without_descriptors():
                tasks.start_soon(take)
                spent_s = time.process_time()
                await anyio.sleep(2.5 * accepting.SHORTAGE_PAUSE_S)
                spent_s = time.process_time() - spent_s
            assert 2 <= len(told) <= 4
            assert spent_s < accepting.SHORTAGE_PAUSE_S
            assert not arrived
            with anyio.fail_after(10):
                await came.wait()
            tasks.cancel_scope.cancel()
    arrived[0].close()


@pytest.mark.anyio
async def test_what_else_keeps_it_from_accepting_is_raised(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.setblocking(False)
        bound.bind(str(tmp_path / "s"))  # without listen: readable, and accept is refused
        with pytest.raises(OSError, match="Invalid argument"), anyio.fail_after(10):
            async for _ in accepting.connections(bound):
                pass
