"""Is HTTP answered as it is meant, and does a client that is slow, silent or wrong cost nothing but its connection?"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest

from supervisor.edges.operators.metrics import metrics_server
from supervisor.edges.operators.metrics.metrics_server import Answer
from supervisor.errors import ConfigurationError

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


async def fine() -> Answer:
    return Answer(200, b"fine\n")


async def broken() -> Answer:
    raise RuntimeError("a defect")


@asynccontextmanager
async def served(path: Path) -> AsyncGenerator[Path]:
    listener = await metrics_server.listen(None, path)
    async with anyio.create_task_group() as tasks:
        await tasks.start(partial(metrics_server.serve, listener, {"/a": fine, "/b": broken}))
        yield path
        tasks.cancel_scope.cancel()


async def ask(path: Path, request: bytes, *, until: bytes = b"") -> bytes:
    """What comes until the server closes, or `until` has come."""
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


async def test_a_head_has_no_body(tmp_path: Path):
    async with served(tmp_path / "s") as path:
        answer = await ask(path, b"HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"content-length: 5" in answer
        assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("nonsense", [b"\x16\x03\x01\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"x" * 100_000])
async def test_nonsense_ends_its_connection_alone(nonsense: bytes, tmp_path: Path):
    async with served(tmp_path / "s") as path:
        assert await ask(path, nonsense) == b""
        assert b"fine" in await ask(path, GET, until=b"fine")


async def test_a_silent_client_is_left_in_time_and_too_many_are_not_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metrics_server, "IDLE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(metrics_server, "CONNECTIONS_MAX", 1)
    async with served(tmp_path / "s") as path, await anyio.connect_unix(path) as silent:
        await silent.send(b"GET")
        assert await ask(path, GET) == b"", "one too many"
        with anyio.fail_after(10), pytest.raises(anyio.EndOfStream):
            await silent.receive()
        assert b"fine" in await ask(path, GET, until=b"fine")


async def test_an_address_that_something_else_has(tmp_path: Path):
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as taken:
        port: int = taken.extra(anyio.abc.SocketAttribute.local_port)
        with pytest.raises(ConfigurationError, match=rf"cannot serve metrics at 127.0.0.1:{port}: .*--metrics"):
            await metrics_server.listen(("127.0.0.1", port), tmp_path / "s")
