"""Where are stores served, and is torch loaded for them only when a client connects?"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Emptied, KillTree, PrepareStore, StoreExited, StoreFailed, StoreReady

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, is_alive, until, worker
from worker_client.spawner import ports, store_host


def local_range() -> tuple[int, int]:
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return int(low), int(high)


class TestPorts:
    def test_a_chosen_port_and_its_neighbours_lie_outside_the_range_of_clients(self) -> None:
        low, high = local_range()
        for _ in range(50):
            fd, port = ports.listen("127.0.0.1", 0)
            os.close(fd)
            assert port >= 1024
            assert port + ports.NEIGHBOURS < low or port > high
            assert port + ports.NEIGHBOURS <= 65535

    def test_ports_of_jobs_differ(self) -> None:
        assert len({ports.choose("127.0.0.1") for _ in range(20)}) > 15

    def test_the_neighbours_are_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        port = ports.choose("127.0.0.1")
        with socket.create_server(("127.0.0.1", port + 40)):
            monkeypatch.setattr(ports, "_candidates", lambda: [port, port + 41])
            assert ports.choose("127.0.0.1") == port + 41

    def test_a_range_that_leaves_no_room_is_used_all_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ports, "_local_port_range", lambda: (1024, 65535))
        assert 1024 <= ports.choose("127.0.0.1") <= 65535 - ports.NEIGHBOURS

    def test_an_ipv6_address(self) -> None:
        fd, port = ports.listen("::1", 0)
        with socket.create_connection(("::1", port)):
            os.close(fd)


class TestFailures:
    def test_a_busy_port_names_its_holder(self, script: Script) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, Rig(script("pass")) as rig:
            port = taken.getsockname()[1]
            rig.send(PrepareStore(0, "127.0.0.1", port))
            reason = rig.receive(StoreFailed).reason
        assert f"cannot serve a store on 127.0.0.1:{port}: the port is held by pid {os.getpid()} (" in reason
        assert reason.endswith("; choose another or use 0")

    def test_an_address_of_another_machine(self, script: Script) -> None:
        with Rig(script("pass")) as rig:
            rig.send(PrepareStore(0, "192.0.2.1"))
            reason = rig.receive(StoreFailed).reason
        assert "this machine has no such address; check --master-addr" in reason

    def test_a_store_host_that_dies_is_reported_unless_it_was_killed(self, script: Script) -> None:
        with Rig(script("pass")) as rig:
            os.kill(rig.serve_store(0), signal.SIGKILL)
            assert rig.receive(StoreExited).reason == "it was ended by SIGKILL"
            pid = rig.serve_store(1)
            rig.send(KillTree(1))
            rig.end()
            assert not is_alive(pid)
            assert not rig.pending(StoreExited)


def test_where_rank_0_hosts_the_store_only_a_port_is_chosen(script: Script) -> None:
    with Rig(script("pass")) as rig:
        rig.send(PrepareStore(0, "127.0.0.1", serve=False))
        ready = rig.receive(StoreReady)
        socket.create_server(("127.0.0.1", ready.port)).close()


def test_a_store_that_nobody_asks_has_no_process_and_its_port_is_free_after_its_cycle(script: Script) -> None:
    with Rig(script("pass")) as rig:
        rig.send(PrepareStore(0, "127.0.0.1"))
        port = rig.receive(StoreReady).port
        assert rig.children() == set()
        rig.send(KillTree(0))
        rig.receive(Emptied)
        rig.send(PrepareStore(1, "127.0.0.1", port))
        assert rig.receive(StoreReady).port == port


def test_a_store_for_which_no_process_can_be_kept_is_reported(script: Script) -> None:
    with Rig(script("pass")) as rig:
        rig.send(PrepareStore(0, "127.0.0.1"))
        port = rig.receive(StoreReady).port
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        limit = resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, (3, hard))
        with socket.create_connection(("127.0.0.1", port)):
            assert "cannot start the store host: Too many open files; " in rig.receive(StoreFailed).reason
        resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, limit)
        until(lambda: not rig.children(), what="the end of what was made")
        assert rig.run(worker())[0].code == 0


CLIENT = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=60))
store.set("a", "b")
print(store.get("a").decode(), store.add("n", 2))
"""


def test_a_spawner_without_torch_serves_a_store_to_whoever_connects(script: Script) -> None:
    with Rig(script("pass"), method="exec") as rig:
        rig.send(PrepareStore(0, "127.0.0.1"))
        port = rig.receive(StoreReady).port
        done = subprocess.run([sys.executable, "-c", CLIENT, str(port)], capture_output=True, timeout=90, check=False)
        assert done.stdout == b"b 2\n", done.stderr


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
                client = [sys.executable, "-c", CLIENT, str(address[1])]
                done = subprocess.run(client, capture_output=True, timeout=90, check=False)
            finally:
                host.kill()
    assert done.stdout == b"b 2\n", done.stderr


@pytest.mark.parametrize(("host", "port"), [("of-nobody\ud800", 0), ("nul\0", 0), ("127.0.0.1", 70_000)])
def test_an_address_that_can_not_be_is_a_sentence_and_the_spawner_goes_on(script: Script, host: str, port: int) -> None:
    with Rig(script("pass")) as rig:
        rig.send(PrepareStore(0, host, port))
        assert "cannot serve a store on " in rig.receive(StoreFailed).reason
        rig.send(PrepareStore(1, "127.0.0.1"))
        rig.receive(StoreReady)
