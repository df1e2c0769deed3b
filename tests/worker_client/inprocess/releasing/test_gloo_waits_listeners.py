"""Does a listener learn of each pair once, and of a connection that ended?"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import Callable

import pytest

from worker_client.inprocess.releasing import gloo_waits
from worker_client.inprocess.releasing.gloo_waits import CONNECT_TIMEOUT_S, HANG_UP_S, PAIRS_MAX, HangUps

WAIT_S = 10.0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_each_pair_of_a_listener_is_broken(host: str):
    try:
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        pytest.skip("no IPv6 here")
    listener.settimeout(WAIT_S)
    with listener:
        hang_ups = HangUps()
        for _ in range(2):
            hang_ups.hang_up([_place(listener)], 3)
        assert sorted(_numbers(listener, 3)) == [0, 1, 2]
        _assert_nobody_comes(listener)


def test_what_does_not_listen_any_more_is_left_alone():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = _place(listener)
        with socket.create_connection(listener.getsockname()) as client:
            HangUps().hang_up([_place(client)], 3)
            client.sendall(b"still connected")
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(64) == b"still connected"
        _assert_nobody_comes(listener)
    HangUps().hang_up([place], 3)


def test_a_number_that_was_not_taken_is_sent_by_the_next_call(monkeypatch: pytest.MonkeyPatch):
    tries = itertools.count()

    def fail_the_second(_: tuple[str, int]) -> None:
        if next(tries) == 1:
            raise TimeoutError

    _connect_after(monkeypatch, fail_the_second)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        hang_ups = HangUps()
        hang_ups.hang_up([_place(listener)], 3)
        assert _numbers(listener, 1) == [0]
        hang_ups.hang_up([_place(listener)], 3)
        assert _numbers(listener, 2) == [1, 2]


def test_a_call_goes_on_where_the_last_one_had_no_more_time(monkeypatch: pytest.MonkeyPatch):
    """Another thread of the script is busy: each connection takes a few turns of the GIL."""
    now_s = _clock(monkeypatch)
    _connect_after(monkeypatch, lambda _: now_s.append(now_s[-1] + 0.02))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        hang_ups = HangUps()
        for _ in range(5):
            hang_ups.hang_up([_place(listener)], 100)
        assert _numbers(listener, 100) == list(range(100))


def test_a_listener_that_takes_nothing_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch):
    now_s = _clock(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as dead, socket.create_server(("127.0.0.1", 0)) as alive:

        def connect(address: tuple[str, int]) -> None:
            is_dead = address == dead.getsockname()
            now_s.append(now_s[-1] + (CONNECT_TIMEOUT_S if is_dead else 0.1))
            if is_dead:
                raise TimeoutError

        _connect_after(monkeypatch, connect)
        alive.settimeout(WAIT_S)
        hang_ups = HangUps()
        for _ in range(4):
            hang_ups.hang_up([_place(dead), _place(alive)], 10)
        assert _numbers(alive, 10) == list(range(10))


def test_the_next_listener_has_its_turn_after_one_that_is_slow(monkeypatch: pytest.MonkeyPatch):
    now_s = _clock(monkeypatch)
    _connect_after(monkeypatch, lambda _: now_s.append(now_s[-1] + HANG_UP_S))
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        second.settimeout(WAIT_S)
        hang_ups = HangUps()
        for _ in range(2):
            hang_ups.hang_up([_place(first), _place(second)], 10)
        assert _numbers(second, 1) == [0]


def test_one_that_takes_nothing_costs_less_than_a_second(monkeypatch: pytest.MonkeyPatch):
    """As where the interface of its address has failed: the main thread waits meanwhile."""

    def connect(_: tuple[str, int], timeout: float) -> socket.socket:
        time.sleep(timeout)
        raise TimeoutError

    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(socket, "create_connection", connect)
        begun_s = time.monotonic()
        HangUps().hang_up([_place(listener)] * 3, PAIRS_MAX)
        assert time.monotonic() - begun_s < 2 * HANG_UP_S


def _place(sock: socket.socket) -> tuple[int, int]:
    return sock.fileno(), os.fstat(sock.fileno()).st_ino


def _clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the times of a clock that a test moves; the last one is now."""
    times_s = [0.0]
    monkeypatch.setattr(gloo_waits, "monotonic", lambda: times_s[-1])
    return times_s


def _connect_after(monkeypatch: pytest.MonkeyPatch, happens: Callable[[tuple[str, int]], object]) -> None:
    """Lets something happen before each connection."""
    really_connect = socket.create_connection

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        happens(address)
        return really_connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", connect)


def _assert_nobody_comes(listener: socket.socket) -> None:
    listener.settimeout(0.1)
    with pytest.raises(TimeoutError):
        listener.accept()


def _numbers(listener: socket.socket, count: int) -> list[int]:
    numbers: list[int] = []
    for _ in range(count):
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(WAIT_S)
            numbers += struct.unpack("=q", connection.recv(8, socket.MSG_WAITALL))
            assert connection.recv(1) == b""
    return numbers
