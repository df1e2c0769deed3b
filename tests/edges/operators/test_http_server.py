"""Is a web application served to as many clients as there is room for?"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from supervisor.edges.operators import http_server
from supervisor.edges.operators.http_server import CONNECTIONS_MAX
from supervisor.errors import ConfigurationError

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


async def fine(_: Request) -> Response:
    return PlainTextResponse("fine\n")


async def broken(_: Request) -> Response:
    raise RuntimeError("a defect")


async def echo(request: Request) -> Response:
    return PlainTextResponse(request.query_params.get("before", "").encode() + await request.body())


def app() -> Starlette:
    return Starlette(routes=[Route("/a", fine), Route("/b", broken), Route("/echo", echo, methods=["POST"])])


@asynccontextmanager
async def served(path: Path, make_app: Callable[[], Starlette] = app, **bounds: float) -> AsyncGenerator[Path]:
    listeners = await http_server.listen(None, path, what="this", flag="--this")
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(http_server.serve, make_app, listeners, **bounds))
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


async def test_a_head_has_no_body(tmp_path: Path):
    async with served(tmp_path / "s") as path:
        answer = await ask(path, b"HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"content-length: 5" in answer
        assert answer.endswith(b"\r\n\r\n")


async def test_what_can_not_be_loaded_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Its files may be replaced at this moment."""
    is_there = False

    def late() -> Starlette:
        if not is_there:
            raise ImportError("half installed")
        return app()

    async with served(tmp_path / "s", late) as path:
        assert await ask(path, GET) == b""
        assert "cannot answer over HTTP" in caplog.text
        is_there = True
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


async def test_while_all_are_being_answered_nobody_else_is(tmp_path: Path):
    asked, go_on = anyio.Event(), anyio.Event()

    async def slow(_: Request) -> Response:
        asked.set()
        await go_on.wait()
        return PlainTextResponse("at last\n")

    slowly = served(tmp_path / "s", lambda: Starlette(routes=[Route("/a", slow)]), connections_max=1)
    async with slowly as path, await anyio.connect_unix(path) as first:
        await first.send(GET)
        with anyio.fail_after(20):
            await asked.wait()
            assert await ask(path, GET) == b"", "one too many"
            go_on.set()
            assert b"at last" in await first.receive()


async def test_an_address_that_something_else_has(tmp_path: Path):
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as taken:
        port: int = taken.extra(anyio.abc.SocketAttribute.local_port)
        with pytest.raises(ConfigurationError, match=rf"cannot serve this at 127.0.0.1:{port}: .*--this"):
            await http_server.listen(("127.0.0.1", port), what="this", flag="--this")
