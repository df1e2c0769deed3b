"""Do bytes and ends get through, whichever side is slow or breaks?"""

from __future__ import annotations

import socket

import anyio

from supervisor.edges.machine.own_process.socket_relay import copy


def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
    return ours, theirs


async def test_bytes_and_their_end_are_passed_on_to_a_slow_reader() -> None:
    writer, source = pair()
    target, reader = pair()
    sent = bytes(range(256)) * 8192
    got = bytearray()

    async def write() -> None:
        unsent = memoryview(sent)
        while unsent:
            try:
                unsent = unsent[writer.send(unsent) :]
            except BlockingIOError:
                await anyio.wait_writable(writer)
        writer.shutdown(socket.SHUT_WR)

    with anyio.fail_after(20), writer, source, target, reader:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(copy, source, target)
            tasks.start_soon(write)
            while True:
                await anyio.wait_readable(reader)
                part = reader.recv(1_000)
                if not part:
                    break
                got += part
    assert got == sent


async def test_a_target_that_has_gone_ends_it() -> None:
    writer, source = pair()
    target, reader = pair()
    with anyio.fail_after(20), writer, source, target:
        reader.close()
        writer.send(b"x")
        await copy(source, target)
