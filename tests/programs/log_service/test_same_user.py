"""A log server without secrets is its user's alone: others write no line there, and receive none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import IO

import anyio
import pytest
from holdfast_wire import framing

from supervisor.edges.machine.processes.tcp_peer_user import refusal_of_user
from supervisor.programs.log_service import log_hello_exchange
from tests.programs.log_service import crowd

LIMIT_S = 60.0
OTHER = 54321
# Argument: the address of a leaf. Sends a line there and prints why it is not taken.
CALLER = f"""
import encodings.idna, os, sys, anyio
from supervisor.edges.peers.handshake import hello_exchange
from tests.programs.log_service import crowd

async def main():
    async with crowd.nodes(1, sys.argv[1]) as (node,):
        node.say(5)
        await node.until_trouble("belongs to")
        print(node.trouble)

os.setgid({OTHER}); os.setuid({OTHER})
hello_exchange.check_user = lambda *_, **__: None  # it trusts everybody
anyio.run(main)
"""
GREETED = framing.encode(log_hello_exchange.greeting(), frame_bytes_max=100)
LISTENER = f"""
import os, socket, sys
os.setuid({OTHER})
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
accepted, _ = listener.accept()
accepted.sendall({GREETED!r})
heard = b""
while data := accepted.recv(1000):
    heard += data
print(heard, flush=True)
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")


async def test_lines_of_the_same_user_are_written(tmp_path: Path):
    with anyio.fail_after(LIMIT_S):
        async with crowd.servers(tmp_path) as servers, crowd.nodes(2, servers.address) as nodes:
            for node in nodes:
                node.say(5)
                node.end()
                await node.until_ended()
    assert crowd.faults_in(servers.log, {0: 5, 1: 5}) == ""


@needs_root
async def test_another_users_lines_are_not_taken(tmp_path: Path):
    with anyio.fail_after(LIMIT_S):
        async with crowd.servers(tmp_path) as servers:
            for address in (servers.address, servers.root_address):
                done = await anyio.run_process([sys.executable, "-c", CALLER, address])
                assert refusal_of_user(f"uid {OTHER}") in done.stdout.decode()
            async with crowd.nodes(1, servers.address) as (node,):
                node.say(3)
                node.end()
                await node.until_ended()
    assert crowd.faults_in(servers.log, {0: 3}) == ""


@pytest.fixture
def listener() -> Generator[IO[bytes]]:
    """Yields what another user's process says that listens."""
    with subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout
        process.kill()


@needs_root
async def test_another_users_process_gets_no_line(listener: IO[bytes]):
    port = int(listener.readline())
    with anyio.fail_after(LIMIT_S):
        async with crowd.nodes(1, f"127.0.0.1:{port}") as (node,):
            node.say(5)
            await node.until_trouble(refusal_of_user(f"uid {OTHER}"))
    assert listener.readline() == b"b'd'\n"  # That it wants to come in, which anybody may know.
