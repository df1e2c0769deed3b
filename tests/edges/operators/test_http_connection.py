"""Is HTTP answered correctly, and does a slow, silent or wrong client affect only its own connection?"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from supervisor.edges.operators import http_server
from tests.edges.operators.test_http_server import GET, ask, served


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x00\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"x" * 100_000,
    ],
)
async def test_nonsense_is_refused_and_ends_its_connection_alone(nonsense: bytes, tmp_path: Path):
    async with served(tmp_path / "s") as path:
        answer = await ask(path, nonsense)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b"cannot read the request: it is not valid HTTP\n")
        assert b"fine" in await ask(path, GET, until=b"fine")


@pytest.mark.parametrize("begun", [b"GET", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"])
async def test_a_client_whose_request_is_not_whole_in_time_is_left(begun: bytes, tmp_path: Path):
    async with served(tmp_path / "s", request_s=1.0) as path, await anyio.connect_unix(path) as silent:
        await silent.send(begun)
        with anyio.fail_after(20), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await silent.receive()
        assert b"fine" in await ask(path, GET, until=b"fine")


async def test_a_rest_that_is_no_http_of_a_request_that_is_answered_ends_its_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with served(tmp_path / "s") as path, await anyio.connect_unix(path) as odd:
        await odd.send(b"GET /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with anyio.fail_after(20):
            while b"fine" not in await odd.receive():
                pass
            await odd.send(b"no chunk\r\n")
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await odd.receive()
        assert b"fine" in await ask(path, GET, until=b"fine")
    assert caplog.records == []


async def test_what_is_being_answered_is_completed_at_the_end_if_that_takes_a_moment(tmp_path: Path):
    asked, go_on = anyio.Event(), anyio.Event()

    async def slow(_: Request) -> Response:
        asked.set()
        await go_on.wait()
        return PlainTextResponse("at last\n")

    listeners = await http_server.listen(None, tmp_path / "s", what="this", flag="--this")
    scope, ended = anyio.CancelScope(), anyio.Event()

    async def serve() -> None:
        with scope:
            await http_server.serve(lambda: Starlette(routes=[Route("/a", slow)]), listeners, last_answers_s=60.0)
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        async with await anyio.connect_unix(tmp_path / "s") as idle, await anyio.connect_unix(tmp_path / "s") as client:
            await client.send(GET)
            with anyio.fail_after(20):
                await asked.wait()
                scope.cancel()
                with pytest.raises(anyio.EndOfStream):
                    await idle.receive()
                go_on.set()
                assert b"at last" in await client.receive()
                await ended.wait()
