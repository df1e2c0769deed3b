"""Is HTTP answered correctly, and does a slow, silent or wrong client affect only its own connection?"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute

from supervisor.edges.operators import http_server
from supervisor.edges.operators.http_server import BODY_BYTES_MAX, CONNECTIONS_MAX, Answer, Request
from supervisor.errors import ConfigurationError

ASKS = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
asks = socket.socket()
asks.connect(("127.0.0.1", int(sys.argv[2])))
asks.send(b"GET /a HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
while data := asks.recv(1000):
    os.write(1, data)
"""
GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


async def fine(_: Request) -> Answer:
    return Answer(200, b"fine\n")


async def broken(_: Request) -> Answer:
    raise RuntimeError("a defect")


async def echo(request: Request) -> Answer:
    return Answer(200, request.query.get("before", "").encode() + request.body)


@asynccontextmanager
async def served(path: Path) -> AsyncGenerator[Path]:
    listener = await http_server.listen(None, path, what="this", flag="--this")
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(http_server.serve, listener, {"GET /a": fine, "GET /b": broken, "POST /echo": echo}))
        yield path
        tasks.cancel_scope.cancel()


async def ask(path: Path, request: bytes, *, until: bytes = b"") -> bytes:
    """Returns what comes until the server closes, or until `until` has come."""
    async with await anyio.connect_unix(path) as stream:
        await stream.send(request)
        answer = b""
        with anyio.fail_after(10):
            while not until or until not in answer:
                try:
                    answer += await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    break
        return answer


async def test_a_page_is_answered_and_the_connection_kept(tmp_path: Path):
    async with served(tmp_path / "s") as path:
        assert (path.stat().st_mode & 0o777) == 0o600
        answer = await ask(path, GET + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert answer.count(b"HTTP/1.1 200") == 2
        assert answer.count(b"\r\n\r\nfine\n") == 2


@pytest.mark.parametrize(
    ("request_line", "status"),
    [("GET /none HTTP/1.1", 404), ("POST /a HTTP/1.1", 405), ("GET /b HTTP/1.1", 500), ("GET /a?x=1 HTTP/1.1", 200)],
)
async def test_status(request_line: str, status: int, tmp_path: Path):
    async with served(tmp_path / "s") as path:
        answer = await ask(path, f"{request_line}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_body_and_a_query_reach_who_answers(tmp_path: Path):
    async with served(tmp_path / "s") as path:
        head = b"POST /echo?before=%3E HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "
        assert (await ask(path, head + b"3\r\n\r\nabc")).endswith(b"\r\n\r\n>abc")
        too_long = BODY_BYTES_MAX + 1
        answer = await ask(path, head + f"{too_long}\r\n\r\n".encode() + b"x" * too_long)
        assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_head_has_no_body(tmp_path: Path):
    async with served(tmp_path / "s") as path:
        answer = await ask(path, b"HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"content-length: 5" in answer
        assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("nonsense", "status"),
    [
        (b"\x16\x03\x01\x00\xff\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"x" * 100_000, 431),
    ],
)
async def test_nonsense_is_refused_and_ends_its_connection_alone(nonsense: bytes, status: int, tmp_path: Path):
    async with served(tmp_path / "s") as path:
        answer = await ask(path, nonsense)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert answer.endswith(b"cannot read the request: it is no valid HTTP\n")
        assert b"fine" in await ask(path, GET, until=b"fine")


async def test_a_silent_client_is_left_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "IDLE_TIMEOUT_S", 0.2)
    async with served(tmp_path / "s") as path, await anyio.connect_unix(path) as silent:
        await silent.send(b"GET")
        with anyio.fail_after(10), pytest.raises(anyio.EndOfStream):
            await silent.receive()
        assert b"fine" in await ask(path, GET, until=b"fine")


async def test_of_too_many_the_one_that_has_been_silent_for_longest_makes_room(tmp_path: Path):
    async with served(tmp_path / "s") as path:
        silent: list[anyio.abc.UNIXSocketStream] = []
        for _ in range(3 * CONNECTIONS_MAX):
            silent.append(await anyio.connect_unix(path))
            await silent[-1].send(b"GET")
        assert b"fine" in await ask(path, GET, until=b"fine")
        with anyio.fail_after(10), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await silent[0].receive()
        await silent[-1].send(b" /a HTTP/1.1\r\nHost: x\r\n\r\n")
        with anyio.fail_after(10):
            assert b"200" in await silent[-1].receive()
        for each in silent:
            await each.aclose()


async def test_while_all_are_being_answered_nobody_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 1)
    asked, go_on = anyio.Event(), anyio.Event()

    async def slow(_: Request) -> Answer:
        asked.set()
        await go_on.wait()
        return Answer(200, b"at last\n")

    listener = await http_server.listen(None, tmp_path / "s", what="this", flag="--this")
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(http_server.serve, listener, {"GET /a": slow}))
        async with await anyio.connect_unix(tmp_path / "s") as first:
            await first.send(GET)
            with anyio.fail_after(10):
                await asked.wait()
                assert await ask(tmp_path / "s", GET) == b"", "one too many"
                go_on.set()
                assert b"at last" in await first.receive()
        tasks.cancel_scope.cancel()


async def asked_as(uid: int, port: int) -> bytes:
    return (await anyio.run_process([sys.executable, "-c", ASKS, str(uid), str(port)])).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
async def test_only_its_own_user_is_answered():
    listener = await http_server.listen(("127.0.0.1", 0), None, what="this", flag="--this")
    port: int = listener.extra(SocketAttribute.local_port)
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(http_server.serve, listener, {"GET /a": fine}, only_own_user=True))
        answer = await asked_as(0, port)
        assert answer.startswith(b"HTTP/1.1 200 ")
        answer = await asked_as(54321, port)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"this is a service for uid 0, and this connection belongs to uid 54321" in answer
        tasks.cancel_scope.cancel()


async def test_an_address_that_something_else_has(tmp_path: Path):
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as taken:
        port: int = taken.extra(anyio.abc.SocketAttribute.local_port)
        with pytest.raises(ConfigurationError, match=rf"cannot serve this at 127.0.0.1:{port}: .*--this"):
            await http_server.listen(("127.0.0.1", port), None, what="this", flag="--this")
