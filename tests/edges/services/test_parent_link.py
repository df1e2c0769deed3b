"""Do a service and the supervisor that started it learn each other's address and end?"""

from __future__ import annotations

import socket

import anyio

from supervisor.edges.services.parent_link import ParentLink, where_it_serves


async def test_a_service_says_where_it_serves_and_learns_of_the_end():
    own, theirs = socket.socketpair()
    link = ParentLink(theirs.detach())
    link.say_where("127.0.0.1", 50050)
    own.setblocking(False)
    assert await where_it_serves(own) == ("127.0.0.1", 50050)
    ended = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.await_end, ended.set)
        own.send(b"nothing that is known")
        own.close()
        with anyio.fail_after(20):
            await ended.wait()


async def test_one_that_ends_or_speaks_nonsense_serves_nowhere():
    for said in (b"", b"hello\n", b"127.0.0.1 x\n", b"x" * 2000):
        own, theirs = socket.socketpair()
        with own, theirs:
            own.setblocking(False)
            theirs.sendall(said)
            theirs.shutdown(socket.SHUT_WR)
            assert await where_it_serves(own) is None
