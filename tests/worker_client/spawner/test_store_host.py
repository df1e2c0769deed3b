"""Where are stores served, and is torch loaded for them only when a client connects?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import PrepareStore, StoreReady

from tests.fork_server import fork_server
from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig
from worker_client.spawner import store_host

CLIENT = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=60))
store.set("a", "b")
print(store.get("a").decode(), store.add("n", 2))
"""


def client(port: int) -> str:
    torch = fork_server("torch.distributed")
    done = torch.ran(CLIENT, str(port), environment=os.environ, folder=Path.cwd(), timeout_s=90)
    return done.stdout or done.stderr


def test_a_spawner_without_torch_serves_a_store_to_whoever_connects(script: Script) -> None:
    with Rig(script("pass"), method="exec") as rig:
        rig.send(PrepareStore(0, "127.0.0.1"))
        port = rig.receive(StoreReady).port
        assert client(port) == "b 2\n"


AS_OLD_TORCH = """
import sys, torch
from worker_client.spawner import store_host
torch.__version__ = "2.7.1+cpu"
store_host.serve("127.0.0.1", int(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.mark.parametrize(("version", "listens"), [("2.5.1+cu124", False), ("2.7.1", False), ("2.8.0a0+git1", True)])
def test_which_torch_serves_a_listening_socket_by_libuv(version: str, listens: bool) -> None:
    assert store_host.libuv_listens(version) is listens


def test_a_torch_whose_libuv_takes_no_listening_socket_serves_the_store_without_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address, fd = listener.getsockname(), str(listener.fileno())
        command = [sys.executable, "-c", AS_OLD_TORCH, str(address[1]), fd]
        with subprocess.Popen(command, pass_fds=[listener.fileno()]) as host:
            listener.close()
            try:
                told = client(address[1])
            finally:
                host.kill()
    assert told == "b 2\n"
