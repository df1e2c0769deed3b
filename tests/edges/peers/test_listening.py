"""Connections that wait are taken at once, as far as there are places, and nobody is kept waiting by them."""

from __future__ import annotations

import socket

import anyio
import anyio.lowlevel

from supervisor.edges.peers.listening import TAKEN_MAX, each_connection, listen_beside
from tests.settling import settled

LIMIT_S = 30.0


async def test_waiting_connections_are_taken_while_others_have_their_turn():
    listener, port = listen_beside("127.0.0.1")
    count = 3 * TAKEN_MAX
    nodes = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    turns = 0
    taken: list[socket.socket] = []

    async def have_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    places = anyio.Semaphore(count)
    with listener, anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(have_turns)
            async for accepted in each_connection(listener, places):
                taken.append(accepted)
                if len(taken) == count:
                    break
            tasks.cancel_scope.cancel()
    assert 1 <= turns < TAKEN_MAX
    assert places.value == 0
    assert not any(each.getblocking() for each in taken)
    for each in (*nodes, *taken):
        each.close()


async def test_a_connection_waits_until_there_is_a_place():
    listener, port = listen_beside("127.0.0.1")
    places = anyio.Semaphore(1)
    taken: list[socket.socket] = []

    note = taken.append

    async def take() -> None:
        async for accepted in each_connection(listener, places):
            note(accepted)

    nodes = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
    with listener, anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await settled()
            assert len(taken) == 1
            places.release()
            await settled()
            assert len(taken) == 2
            nodes.append(socket.create_connection(("127.0.0.1", port)))
            places.release()
            while len(taken) < 3:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    for each in (*nodes, *taken):
        each.close()
