"""Does a listener learn of each pair once, and of a connection that ended?"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time

import pytest

from worker_client.inprocess.releasing.gloo_waits import HANG_UP_S, PAIRS_MAX, hang_up

WAIT_S = 10.0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_each_pair_of_a_listener_is_broken(host: str):
    try:
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        pytest.skip("no IPv6 here")
    listener.settimeout(WAIT_S)
    with listener:
        inode = os.fstat(listener.fileno()).st_ino
        assert hang_up([(listener.fileno(), inode)], 3) == {inode}
        assert sorted(_numbers(listener, 3)) == [0, 1, 2]


def test_what_does_not_listen_any_more_is_left_alone():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = (listener.fileno(), os.fstat(listener.fileno()).st_ino)
        with socket.create_connection(listener.getsockname()) as client:
            assert hang_up([(client.fileno(), os.fstat(client.fileno()).st_ino)], 3) == frozenset()
    assert hang_up([place], 3) == frozenset()


def test_a_listener_that_did_not_take_all_numbers_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    """One connection is too slow: the other pairs are broken at once, and the listener does not count as reached."""
    really_connect, tries = socket.create_connection, itertools.count()

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        if next(tries) == 1:
            raise TimeoutError
        return really_connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", connect)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        place = (listener.fileno(), os.fstat(listener.fileno()).st_ino)
        assert hang_up([place], 3) == frozenset()
        assert sorted(_numbers(listener, 2)) == [0, 2]
        assert hang_up([place], 3) == {place[1]}
        assert sorted(_numbers(listener, 3)) == [0, 1, 2]


def test_one_that_takes_nothing_costs_less_than_a_second(monkeypatch: pytest.MonkeyPatch):
    """As where the interface of its address has failed: the main thread waits meanwhile."""

    def connect(_: tuple[str, int], timeout: float) -> socket.socket:
        time.sleep(timeout)
        raise TimeoutError

    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(socket, "create_connection", connect)
        begun_s = time.monotonic()
        places = [(listener.fileno(), os.fstat(listener.fileno()).st_ino)] * 3
        assert hang_up(places, PAIRS_MAX) == frozenset()
        assert time.monotonic() - begun_s < 2 * HANG_UP_S


def _numbers(listener: socket.socket, count: int) -> list[int]:
    numbers: list[int] = []
    for _ in range(count):
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(WAIT_S)
            numbers += struct.unpack("=q", connection.recv(8, socket.MSG_WAITALL))
            assert connection.recv(1) == b""
    return numbers
