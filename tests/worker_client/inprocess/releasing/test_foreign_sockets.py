"""How is a socket of other code looked at without changing it?"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable, Iterator

import pytest

from worker_client.inprocess.releasing import foreign_sockets

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


def test_a_socket_whose_peer_does_not_answer_is_being_connected_until_it_is_shut_down(new_pair: Callable[..., Pair]):
    """The kernel drops what comes to a listener whose queue is full."""
    pair = new_pair()
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind((HOST, 0))
        full.listen(0)
        first.connect(full.getsockname())
        second.setblocking(False)
        assert second.connect_ex(full.getsockname()) == errno.EINPROGRESS
        assert foreign_sockets.connects(second.fileno())
        assert not any(foreign_sockets.connects(each.fileno()) for each in (first, full, pair.client))
        assert foreign_sockets.shut_down(second.fileno())
        assert not foreign_sockets.connects(second.fileno())
        assert second.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET


def test_a_number_that_was_given_away_is_not_taken_for_the_old_socket(new_pair: Callable[..., Pair]):
    pair = new_pair()
    inode = os.fstat(pair.client.fileno()).st_ino
    with foreign_sockets.borrowed(pair.client.fileno(), inode) as own:
        assert own is not None
        assert foreign_sockets.peer(own) == foreign_sockets.Endpoint(socket.inet_aton(HOST), pair.port)
    for descriptor, number in ((pair.server.fileno(), inode), (1 << 20, inode)):
        with foreign_sockets.borrowed(descriptor, number) as own:
            assert own is None
    near, far = socket.socketpair()
    with near, far, foreign_sockets.borrowed(near.fileno(), os.fstat(near.fileno()).st_ino) as own:
        assert own is None, "no TCP"


def test_a_process_without_a_free_descriptor_sees_no_socket(new_pair: Callable[..., Pair]):
    descriptor = new_pair().client.fileno()
    assert descriptor in foreign_sockets.socket_inodes()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        assert foreign_sockets.socket_inodes() == {}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_addresses_compare_whatever_the_family():
    assert foreign_sockets.packed("::ffff:10.1.2.3") == foreign_sockets.packed("10.1.2.3") == bytes([10, 1, 2, 3])
    assert foreign_sockets.packed("fe80::1%eth0") == foreign_sockets.packed("fe80::1")
    assert foreign_sockets.packed("localhost") is None
