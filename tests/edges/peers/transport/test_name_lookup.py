"""Are names looked up as everywhere else, and does a lack of threads cost the lookup alone?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import anyio
import pytest

from supervisor.edges.peers.transport.name_lookup import look_up


async def test_an_address_a_name_and_any_address() -> None:
    ((family, kind, _, _, where),) = await look_up("127.0.0.1", 80, kind=socket.SOCK_STREAM)
    assert (family, kind, where) == (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 80))
    assert ("127.0.0.1", 81) in [each[4] for each in await look_up("localhost", 81, kind=socket.SOCK_STREAM)]
    anywhere = await look_up(None, 82, kind=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    assert ("0.0.0.0", 82) in [each[4] for each in anywhere]
    with pytest.raises(socket.gaierror):
        await look_up("no such host", 80, kind=socket.SOCK_STREAM)


async def test_an_address_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("supervisor.edges.peers.transport.name_lookup.in_thread", refuse)
    assert await look_up("::1", 80, kind=socket.SOCK_STREAM)


WITHOUT_THREADS = """
import os, resource, socket, sys
import anyio
from supervisor.edges.peers.transport.name_lookup import look_up

async def main():
    "a".encode("idna")  # what is loaded later may be in a folder of root's
    os.setresgid(31999, 31999, 31999)
    os.setresuid(31999, 31999, 31999)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    try:
        await look_up("localhost", 80, kind=socket.SOCK_STREAM)
    except OSError as error:
        print(error)

anyio.run(main, backend_options={"use_uvloop": True})
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be a user whose processes count")
async def test_without_a_thread_a_name_is_an_error_and_the_process_lives() -> None:
    done = await anyio.run_process([sys.executable, "-c", WITHOUT_THREADS], stderr=subprocess.STDOUT, check=False)
    assert (done.returncode, "ulimit -u" in done.stdout.decode()) == (0, True), done.stdout
