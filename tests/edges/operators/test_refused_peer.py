"""Another user's call is refused with gRPC's own code and a sentence, and never loads the control API."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import pytest
from h2.connection import H2Connection

from supervisor.edges.machine.processes.socket_stream import SocketStream
from supervisor.edges.operators import refused_peer
from supervisor.edges.operators.control_gate import Api, ControlGate
from supervisor.errors import NotPermittedError

STRANGER = 4321
CALL = """
import os, sys, grpc
from pathlib import Path
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import HoldfastError
os.setuid(int(sys.argv[2]))
with ControlClient(Path(sys.argv[1])) as client:
    for _ in range(2):
        try:
            client.nodes()
        except HoldfastError as error:
            print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
async def test_another_user_is_refused_with_a_sentence_and_the_api_is_not_loaded() -> None:
    loaded: list[None] = []
    said: list[bytes] = []

    def load() -> Api:
        loaded.append(None)
        raise AssertionError

    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        path = Path(name) / "control.sock"
        async with anyio.create_task_group() as tasks:
            await tasks.start(ControlGate(socket_path=path, load=load).run)
            path.chmod(0o666)  # however he got this far
            command = [sys.executable, "-c", CALL, str(path), str(STRANGER)]
            done = await anyio.run_process(command, stderr=subprocess.STDOUT, check=False)
            said.append(done.stdout)
            tasks.cancel_scope.cancel()
    lines = said[0].decode().splitlines()
    assert (
        lines
        == [
            f"NotPermittedError cannot answer user id {STRANGER}: this supervisor answers root alone; "
            "ask as that user, or use a supervisor of your own"
        ]
        * 2
    )
    assert loaded == []


async def test_a_peer_that_sends_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_peer, "TIMEOUT_S", 3600.0)
    settings, ping = bytes(3) + b"\x04" + bytes(5), b"\x00\x00\x08\x06" + bytes(5 + 8)
    own, other = socket.socketpair()
    with own, other:
        own.setblocking(False)
        other.setblocking(False)
        peer = SocketStream(other)

        async def send() -> None:
            await peer.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
            while await peer.send(ping * 100):
                pass

        async def read() -> None:
            while await peer.receive():
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            tasks.start_soon(read)
            with anyio.fail_after(30):
                await refused_peer.refuse(own, NotPermittedError("cannot answer you: no; ask as another user"))
            tasks.cancel_scope.cancel()


async def test_a_peer_that_opens_and_resets_calls_without_end_is_left_after_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reset stream counts as closed, so the bound of streams at a time does not hold here."""
    monkeypatch.setattr(refused_peer, "TIMEOUT_S", 3600.0)
    client = H2Connection()
    client.initiate_connection()
    for _ in range(2_000):
        number = client.get_next_available_stream_id()
        client.send_headers(number, [(":method", "POST"), (":scheme", "http"), (":path", "/x"), (":authority", "x")])
        client.reset_stream(number)
    own, other = socket.socketpair()
    with own, other:
        own.setblocking(False)
        other.setblocking(False)
        sent = other.send(client.data_to_send())
        assert sent > 32 << 10
        with anyio.fail_after(30):
            await refused_peer.refuse(own, NotPermittedError("cannot answer you: no; ask as another user"))
        assert len(own.recv(1 << 20)) > sent / 2
