"""Which store waits for its first client, and which process serves it when one comes?"""

from __future__ import annotations

import os
import resource
import signal
import socket

import pytest
from holdfast_wire.spawner_link import Emptied, KillTree, PrepareStore, StoreExited, StoreFailed, StoreReady

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, is_alive, until, worker


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


@pytest.mark.parametrize("serve", [True, False])
def test_a_store_stays_within_the_ports_that_the_order_names(script: Script, serve: bool) -> None:
    with Rig(script("pass")) as rig:
        rig.send(PrepareStore(0, "127.0.0.1", serve=serve, first_port=21_000, last_port=21_999))
        assert 21_000 <= rig.receive(StoreReady).port <= 21_999 - 64


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


@pytest.mark.parametrize(("host", "port"), [("of-nobody\ud800", 0), ("nul\0", 0), ("127.0.0.1", 70_000)])
def test_an_address_that_can_not_be_is_a_sentence_and_the_spawner_goes_on(script: Script, host: str, port: int) -> None:
    with Rig(script("pass")) as rig:
        rig.send(PrepareStore(0, host, port))
        assert "cannot serve a store on " in rig.receive(StoreFailed).reason
        rig.send(PrepareStore(1, "127.0.0.1"))
        rig.receive(StoreReady)
