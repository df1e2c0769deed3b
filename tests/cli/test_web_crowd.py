"""Does the owner's page load while another user of the node holds as many connections to it as she can?"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from supervisor.edges.machine.processes.connection_rate_limit import ConnectionRateLimit
from supervisor.edges.operators import http_connection_limit, http_server
from tests.cli.supervised import Home
from tests.cli.test_web import JOB, Web, updates
from tests.edges.operators.fake_job_service import running

OTHER = 54321
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
DESCRIPTORS = 1024  # as most login sessions have
# Arguments: user, port, connections, what each says at first, what one after another says later. A closed one is
# replaced at once.
CROWD = """
import os, resource, selectors, socket, sys
uid, port, count = map(int, sys.argv[1:4])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 64, count + 64))
os.setuid(uid)
selector = selectors.DefaultSelector()
def one():
    sock = socket.socket()
    sock.connect(("127.0.0.1", port))
    sock.setblocking(False)
    try:
        sock.send(sys.argv[4].encode())
    except OSError:
        pass
    selector.register(sock, selectors.EVENT_READ)
for _ in range(count):
    one()
print("there", flush=True)
while True:
    for key, _ in selector.select(0.1):
        try:
            ended = not key.fileobj.recv(65536)
        except OSError:
            ended = True
        if ended:
            selector.unregister(key.fileobj)
            key.fileobj.close()
            one()
    for key in list(selector.get_map().values())[:64]:
        try:
            key.fileobj.send(sys.argv[5].encode())
        except OSError:
            pass
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.close()


@contextmanager
def crowd(root: str, count: int, first: str = "", later: str = "") -> Generator[None]:
    port = root.rpartition(":")[2]
    command = [sys.executable, "-c", CROWD, str(OTHER), port, str(count), first, later]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            yield
        finally:
            process.kill()


def descriptors(web: Web) -> int:
    return len(os.listdir(f"/proc/{web.process.pid}/fd"))


@pytest.mark.alone
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("", ""),
        ("GET / HTTP/1.1\r\nHost: x\r\n", "a: b\r\n"),
        ("POST /session HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n", "b"),
    ],
    ids=["idle", "slow heads", "slow bodies"],
)
def test_3000_connections_of_another_user_keep_the_owner_from_nothing(first: str, later: str, home: Home) -> None:
    with home.supervisor(running()):
        web = Web(home)
        resource.prlimit(web.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        with web.get("/stream") as stream, crowd(web.root, 3000, first, later):
            for path in ("/", "/site.js", f"/report/{JOB}"):
                asked_at_s = time.monotonic()
                with web.get(path) as answer:
                    assert answer.status == 200
                assert time.monotonic() - asked_at_s < 10
            assert descriptors(web) < DESCRIPTORS / 2
            while JOB not in str(updates(stream)):
                pass
        web.end()


async def fine(_: Request) -> Response:
    return Response()


def app() -> Starlette:
    return Starlette(routes=[Route("/", fine)])


@asynccontextmanager
async def served(request_s: float = 30.0) -> AsyncGenerator[tuple[str, int]]:
    listeners = await http_server.listen(("127.0.0.1", 0), what="this", flag="--this")
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(http_server.serve, app, listeners, request_s=request_s))
        yield listeners[0].getsockname()
        tasks.cancel_scope.cancel()


async def write_slowly(client: anyio.abc.ByteStream) -> None:
    """Each byte comes in time, the head does not."""
    while True:
        with anyio.move_on_after(0.05):
            await client.receive()
        await client.send(b"/")


async def test_a_connection_whose_request_head_is_not_whole_in_time_ends() -> None:
    async with served(request_s=0.5) as address, await anyio.connect_tcp(*address) as client:
        await client.send(GET + b"GET ")
        with anyio.fail_after(20):
            assert b"200 OK" in await client.receive()
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await write_slowly(client)


@pytest.mark.parametrize("uid", [os.geteuid(), OTHER])
async def test_other_users_get_so_many_connections_per_second(uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "ConnectionRateLimit", partial(ConnectionRateLimit, 2, 0.001))

    def user_at(*_: object) -> int:
        return uid

    monkeypatch.setattr(http_connection_limit, "user_at", user_at)
    answered = 0
    async with served() as address:
        for _ in range(4):
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError), anyio.fail_after(20):
                async with await anyio.connect_tcp(*address) as client:
                    await client.send(GET)
                    answered += b"200 OK" in await client.receive()
    assert answered == (4 if uid == os.geteuid() else 2)
