"""Which connections does the release end? Sockets as torch makes them, at addresses that nobody else uses."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from worker_client.inprocess.releasing import store_waits
from worker_client.inprocess.releasing.store_waits import begin_iteration, shut_down_store_connections

HOST, OTHER_HOST = "127.0.0.77", "127.0.0.78"
WAIT_S = 10.0


class Pair:
    """A server with one client."""

    def __init__(self, host: str = HOST, *, no_delay: bool = True, blocks: bool = True) -> None:
        self.listener = socket.create_server((host, 0))
        self.port: int = self.listener.getsockname()[1]
        self.client = socket.create_connection(self.listener.getsockname(), WAIT_S, source_address=(host, 0))
        self.server, _ = self.listener.accept()
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, no_delay)
        self.client.setblocking(blocks)
        self.server.settimeout(WAIT_S)

    def is_alive(self) -> bool:
        with contextlib.suppress(OSError):
            self.server.sendall(b"x")
            self.client.setblocking(True)
            return self.client.recv(1) == b"x"
        return False

    def close(self) -> None:
        for each in (self.client, self.server, self.listener):
            each.close()


@pytest.fixture
def new_pair() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(host: str = HOST, **more: bool) -> Pair:
        made.append(Pair(host, **more))  # pyright: ignore[reportArgumentType]
        return made[-1]

    yield make
    for pair in made:
        pair.close()


@pytest.fixture(autouse=True)
def call(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MASTER_ADDR", HOST)
    monkeypatch.setenv("MASTER_PORT", "1")
    yield
    store_waits.end_call()


@pytest.mark.parametrize(
    ("distance", "iteration", "is_ended"),
    [(0, 0, True), (63, 0, True), (64, 0, False), (-1, 0, False), (102, 100, True), (102, 3, False), (1, 100, True)],
)
def test_a_client_of_one_of_the_jobs_stores_is_ended(
    new_pair: Callable[..., Pair], distance: int, iteration: int, is_ended: bool
):
    listener = new_pair()
    begin_iteration(iteration, None, str(listener.port - distance))
    client = socket.create_connection((HOST, listener.port), WAIT_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    client.setblocking(True)
    with client, listener.listener.accept()[0]:
        assert shut_down_store_connections() == is_ended
    assert listener.is_alive(), "the server serves the others, and who came before the iteration stays"


def test_a_store_at_the_launchers_address_counts_where_the_iteration_has_another(
    new_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MASTER_ADDR", OTHER_HOST)
    begin_iteration(1, launchers_host=HOST)
    here, there = new_pair(HOST), new_pair(OTHER_HOST)
    for pair in (here, there):
        os.environ["MASTER_PORT"] = str(pair.port)
        assert shut_down_store_connections() == 1


def test_what_waits_in_it_returns(new_pair: Callable[..., Pair]):
    begin_iteration(0)
    pair = new_pair()
    os.environ["MASTER_PORT"] = str(pair.port - 2)  # as a script may set it in its function
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(pair.client.recv(1)))
    thread.start()
    assert shut_down_store_connections() == 1
    thread.join(WAIT_S)
    assert received == [b""]


@pytest.mark.parametrize("odd", [{"host": OTHER_HOST}, {"no_delay": False}, {"blocks": False}])
def test_what_is_no_store_of_this_job_is_left_alone(new_pair: Callable[..., Pair], odd: dict[str, bool]):
    begin_iteration(0)
    pair = new_pair(**odd)
    os.environ["MASTER_PORT"] = str(pair.port)
    assert shut_down_store_connections() == 0
    assert pair.is_alive()


def test_connections_that_this_process_serves_are_left_alone(
    new_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
):
    """This holds even if the client's port looks like a store's."""
    begin_iteration(0)
    pair = new_pair()
    pair.server.settimeout(None)
    pair.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    address, port = pair.client.getsockname()
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("MASTER_PORT", str(port))
    if abs(port - pair.port) >= store_waits.PORTS:  # otherwise the client itself would rightly be ended, too
        assert shut_down_store_connections() == 0
        assert pair.is_alive()


def test_a_store_that_outlives_the_iteration_is_left_alone(new_pair: Callable[..., Pair]):
    begin_iteration(0)
    with store_waits.kept():
        pair = new_pair()
    os.environ["MASTER_PORT"] = str(pair.port)
    assert shut_down_store_connections() == 0
    begin_iteration(1)
    assert shut_down_store_connections() == 0
    assert pair.is_alive()


def test_outside_of_a_call_nothing_is_ended(new_pair: Callable[..., Pair]):
    begin_iteration(0)
    pair = new_pair()
    os.environ["MASTER_PORT"] = str(pair.port)
    store_waits.end_call()
    assert shut_down_store_connections() == 0
    assert pair.is_alive()


def test_the_address_may_be_a_name_and_its_lookup_is_asked_once(
    new_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
):
    may_answer, asked = threading.Event(), threading.Semaphore(0)

    def look_up(host: str, port: None, **_: object) -> list[tuple[object, ...]]:
        asked.release()
        may_answer.wait(WAIT_S)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (HOST, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(store_waits, "LOOKUP_TIMEOUT_S", 0.05)
    monkeypatch.setenv("MASTER_ADDR", f"node-{os.getpid()}.invalid")
    listener = socket.socket()  # create_connection looks up names
    listener.bind((HOST, 0))
    listener.listen()
    begin_iteration(0, str(listener.getsockname()[1]))
    with listener, socket.socket() as client:
        client.connect(listener.getsockname())
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        assert shut_down_store_connections() == 0, "not known yet"
        assert shut_down_store_connections() == 0
        may_answer.set()
        for thread in threading.enumerate():
            if thread.name.startswith("holdfast-look up"):
                thread.join(WAIT_S)
        assert shut_down_store_connections() == 1
    assert asked.acquire(blocking=False)
    assert not asked.acquire(blocking=False)


def test_a_lookup_that_fails_is_repeated_and_no_later_restart_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A name server that fails after seconds cost each restart LOOKUP_TIMEOUT_S."""
    attempts, may_go_on, went_on = list[int](), threading.Event(), list[bool]()

    def look_up(host: str, port: None, **_: object) -> list[tuple[object, ...]]:
        attempts.append(len(attempts))
        if len(attempts) > 1:
            went_on.append(may_go_on.wait(WAIT_S))
        if len(attempts) < 3:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (HOST, 0))]

    def shut_down_meanwhile() -> int:
        """Shuts down; the look-up goes on only then."""
        may_go_on.clear()
        count = shut_down_store_connections()
        may_go_on.set()
        for thread in threading.enumerate():
            if thread.name.startswith("holdfast-look up"):
                thread.join(WAIT_S)
        return count

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(store_waits, "LOOKUP_TIMEOUT_S", 2 * WAIT_S)
    monkeypatch.setenv("MASTER_ADDR", f"node-{os.getpid()}-again.invalid")
    listener = socket.socket()  # create_connection looks up names
    listener.bind((HOST, 0))
    listener.listen()
    begin_iteration(0, str(listener.getsockname()[1]))
    with listener, socket.socket() as client:
        client.connect(listener.getsockname())
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        assert shut_down_store_connections() == 0
        monkeypatch.setattr(store_waits, "LOOKUP_AGAIN_S", 60.0, raising=False)
        assert shut_down_meanwhile() == 0
        assert len(attempts) == 1, "it has just failed"
        monkeypatch.setattr(store_waits, "LOOKUP_AGAIN_S", 0.0, raising=False)
        assert shut_down_meanwhile() == 0
        assert shut_down_meanwhile() == 0
        assert shut_down_meanwhile() == 1
    assert went_on == [True, True]
    assert [record.getMessage().startswith("cannot look up MASTER_ADDR=") for record in caplog.records] == [True]


def test_looking_at_a_socket_changes_nothing_about_it(new_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch):
    """With a default timeout, a Python object for the descriptor would make it non-blocking for its owner."""
    begin_iteration(0)
    pair = new_pair(OTHER_HOST)
    os.environ["MASTER_PORT"] = str(pair.port)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(5.0)
    try:
        assert shut_down_store_connections() == 0
    finally:
        socket.setdefaulttimeout(before)
    assert os.get_blocking(pair.client.fileno())
