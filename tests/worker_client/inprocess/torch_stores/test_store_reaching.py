"""How long is a store's server tried? Real sockets."""

from __future__ import annotations

import socket
import threading
from time import monotonic

import pytest

from tests.worker_client.inprocess.store_process import free_port
from worker_client.inprocess.torch_stores import store_reaching

HOST = "127.0.0.1"
LONG_S = 30.0


def test_a_server_that_comes_later_is_joined_once():
    port, joined = free_port(), list[str]()
    thread = threading.Thread(target=store_reaching.connect, args=(lambda: joined.append("joined"), HOST, port, LONG_S))
    thread.start()
    thread.join(0.3)
    assert not joined, "nobody listens yet"
    with socket.create_server((HOST, port)):
        thread.join(LONG_S)
    assert joined == ["joined"]


def test_a_server_that_never_comes_is_named():
    port = free_port()
    with pytest.raises(RuntimeError, match=f"cannot connect to a store at {HOST}:{port}: Connection refused for 0.2 s"):
        store_reaching.connect(lambda: None, HOST, port, 0.2)


def test_a_server_that_accepts_and_says_nothing_holds_nobody():
    may_end = threading.Event()
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        began_s = monotonic()
        try:
            with pytest.raises(RuntimeError, match=f"at {HOST}:{port}: no answer within 0.2 s"):
                store_reaching.connect(may_end.wait, HOST, port, 0.2)
        finally:
            may_end.set()
        assert monotonic() - began_s < LONG_S / 2


def test_an_error_of_the_join_comes_to_the_caller():
    def refuse() -> None:
        raise ValueError("not a store")

    with socket.create_server((HOST, 0)) as server, pytest.raises(ValueError, match="not a store"):
        store_reaching.connect(refuse, HOST, server.getsockname()[1], LONG_S)
