"""Does the client survive any answer of an HTTP service in time, and not trust any of it too much?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from supervisor.edges.services import http_client
from supervisor.edges.services.http_client import Answer, HttpClient, NoAnswerError
from tests.edges.peers.certificates import make_authority, make_node
from tests.edges.services.hostile import endless, hostile, json_of, says, silent

SQUATTER = """
import os, socket, time
os.setuid(54321)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(60)
"""
HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def squatter() -> Generator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", SQUATTER], stdout=subprocess.PIPE) as process:
        yield process
        process.kill()


async def test_a_request_and_its_answer():
    with hostile(json_of('{"a": 1}', "202 Accepted")) as server:
        client = HttpClient(f"{server.url}/base/", timeout_s=10)
        assert await client.ask("POST", "/logs?x=1", b"{}") == Answer(202, b'{"a": 1}')
    (request,) = server.requests
    assert request.startswith(b"POST /base/logs?x=1 HTTP/1.1\r\n")
    assert b"content-type: application/json\r\n" in request.lower()


async def test_an_answer_without_a_length_ends_with_its_connection():
    with hostile(says(HEAD + b"\r\nabc")) as server:
        assert (await HttpClient(server.url, timeout_s=10).ask("GET", "/")).body == b"abc"


async def test_a_redirect_leads_nowhere():
    with hostile(says(b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n")) as server:
        assert (await HttpClient(server.url, timeout_s=10).ask("GET", "/")).status == 302
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (silent, "it has not answered within 0.5 s"),
        (endless(HEAD + b"\r\n", b"x" * 4096), "its answer is longer than 1 MiB"),
        (endless(HEAD, b"x-header: y\r\n"), "is not HTTP"),
        (says(b"220 mail.example ESMTP\r\n"), "closed the connection"),
        (says(b"220 mail.example ESMTP\r\n\r\n"), "is not HTTP"),
        (says(b"\x16\x03\x01\x00\xff" * 40), "is not HTTP"),
        (says(HEAD + b"content-length: 10\r\n\r\nabc"), "is not HTTP"),
        (says(HEAD + b"content-length: -1\r\n\r\nabc"), "is not HTTP"),
        (says(b""), "closed the connection"),
    ],
)
async def test_what_is_no_answer(answer: Callable[[socket.socket], None], why: str):
    with hostile(answer) as server:
        timeout_s = 0.5 if answer is silent else 20
        with pytest.raises(NoAnswerError, match=why):
            await HttpClient(server.url, timeout_s=timeout_s).ask("GET", "/")


async def test_nobody_is_there():
    with pytest.raises(NoAnswerError, match="connection refused"):
        await HttpClient("http://127.0.0.1:1", timeout_s=10).ask("GET", "/")
    with pytest.raises(NoAnswerError, match=r"(?i)name|temporary|address"):
        await HttpClient("http://no-such-host.invalid", timeout_s=10).ask("GET", "/")


async def test_an_authority_of_the_users_own_vouches_for_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(make_authority(tmp_path)))
    with hostile(json_of('{"a": 1}'), make_node(tmp_path, address="127.0.0.1")) as server:
        client = HttpClient(server.url, timeout_s=10)
        assert await client.ask("GET", "/logs") == Answer(200, b'{"a": 1}')
        assert await client.ask("POST", "/logs", b"{}") == Answer(200, b'{"a": 1}')
    assert [request.split(b" ")[0] for request in server.requests] == [b"GET", b"POST"]


@pytest.mark.parametrize(
    ("named", "certificate", "why"),
    [
        ("", {"address": "127.0.0.1"}, "unable to get local issuer certificate; .*SSL_CERT_FILE"),
        ("other", {"address": "127.0.0.1"}, "unable to get local issuer certificate; .*SSL_CERT_FILE"),
        ("ca", {"address": "127.0.0.2"}, "IP address mismatch"),
        ("ca", {}, "IP address mismatch.*check the URL"),
        ("ca", {"address": "127.0.0.1", "has_expired": True}, "certificate has expired"),
    ],
)
async def test_a_certificate_that_nobody_vouches_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, certificate: dict[str, Any], why: str
):
    """`named`: the user's authority. Nothing of the request is sent."""
    authorities = {name: str(make_authority(tmp_path, name)) for name in ("ca", "other")}
    if named:
        monkeypatch.setenv("SSL_CERT_FILE", authorities[named])
    refused = pytest.raises(NoAnswerError, match=f"its certificate is refused: .*{why}")
    with hostile(json_of("{}"), make_node(tmp_path, **certificate)) as server, refused:
        await HttpClient(server.url, timeout_s=10).ask("GET", "/")
    assert server.requests == []


async def test_a_service_without_tls_is_not_spoken_to_by_https():
    with hostile(says(HEAD + b"\r\n")) as server, pytest.raises(NoAnswerError, match="TLS with it failed"):
        await HttpClient(server.url.replace("http:", "https:"), timeout_s=10).ask("GET", "/")


async def test_a_name_that_is_never_resolved_costs_its_request_alone(monkeypatch: pytest.MonkeyPatch):
    def stuck(*_: object, **__: object) -> list[object]:
        released.wait(20)
        return []

    released = threading.Event()
    monkeypatch.setattr(http_client.socket, "getaddrinfo", stuck)
    try:
        with pytest.raises(NoAnswerError, match=r"has not answered within 0\.2 s"):
            await HttpClient("http://slow.example", timeout_s=0.2).ask("GET", "/")
    finally:
        released.set()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
async def test_another_users_process_at_the_port_of_an_own_service_is_not_asked(squatter: subprocess.Popen[bytes]):
    assert squatter.stdout is not None
    url = f"http://127.0.0.1:{int(squatter.stdout.readline())}"
    with pytest.raises(NoAnswerError, match="its port belongs to uid 54321"):
        await HttpClient(url, timeout_s=10, only_own_user=True).ask("GET", "/")
    with pytest.raises(NoAnswerError, match="it has not answered"):
        await HttpClient(url, timeout_s=0.2).ask("GET", "/")


async def test_an_answer_is_not_believed_if_the_port_is_another_users_by_then(monkeypatch: pytest.MonkeyPatch):
    found = ["", "uid 54321"]
    monkeypatch.setattr(http_client, "stranger_listening_at", lambda *_: found.pop(0))  # pyright: ignore
    with hostile(json_of("{}")) as server, pytest.raises(NoAnswerError, match="its port belongs to uid 54321"):
        await HttpClient(server.url, timeout_s=10, only_own_user=True).ask("GET", "/")


async def test_an_own_service_is_asked():
    with hostile(json_of("{}")) as server:
        assert (await HttpClient(server.url, timeout_s=10, only_own_user=True).ask("GET", "/")).status == 200
