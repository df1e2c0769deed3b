"""Is a client in C++, which retries to connect to a store that nobody serves, let in, so that it can be released?"""
# pyright: basic, reportPrivateImportUsage=false

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from time import monotonic

import pytest
import torch.distributed as dist

from worker_client.inprocess.releasing import store_waits
from worker_client.inprocess.releasing.missing_store_server import SubstituteStores, served_while_waiting
from worker_client.inprocess.releasing.store_waits import Place

HERE, ELSEWHERE = "127.0.0.1", "192.0.2.1"
PATIENCE_S = 60.0


def unserved_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return probe.getsockname()[1]


def test_a_client_that_nobody_serves_gets_in_and_the_port_is_free_afterwards():
    port, came_in = unserved_port(), threading.Event()

    def connect() -> None:
        dist.TCPStore(HERE, port, is_master=False, timeout=timedelta(seconds=PATIENCE_S))
        came_in.set()

    threading.Thread(target=connect, daemon=True).start()
    assert not came_in.wait(0.3)
    begun_s, substitutes = monotonic(), SubstituteStores()
    assert substitutes.open([Place(HERE, port)]) == 1
    assert came_in.wait(PATIENCE_S / 2), "it waits until its own timeout"
    assert monotonic() - begun_s < PATIENCE_S / 2
    assert substitutes.open([Place(HERE, port)]) == 1, "it is served once"
    substitutes.close()
    with socket.create_server((HERE, port)):
        pass


def test_a_rank_that_waits_for_others_lets_them_in_and_frees_the_port(monkeypatch: pytest.MonkeyPatch):
    port, came_in = unserved_port(), threading.Event()
    monkeypatch.setenv("MASTER_ADDR", HERE)
    monkeypatch.setenv("MASTER_PORT", str(port))

    def connect() -> None:
        dist.TCPStore(HERE, port, is_master=False, timeout=timedelta(seconds=PATIENCE_S))
        came_in.set()

    store_waits.begin_iteration(0, str(port))
    try:
        threading.Thread(target=connect, daemon=True).start()
        with served_while_waiting():
            assert came_in.wait(PATIENCE_S / 2), "it waits until its own timeout"
    finally:
        store_waits.end_call()
    with socket.create_server((HERE, port)):
        pass


def test_a_port_that_is_served_and_an_address_of_another_host_are_left_alone():
    with socket.create_server((HERE, 0)) as server:
        assert SubstituteStores().open([Place(HERE, server.getsockname()[1]), Place(ELSEWHERE, unserved_port())]) == 0


def test_a_port_that_cannot_exist_is_left_alone():
    assert SubstituteStores().open([Place(HERE, 1 << 16)]) == 0
