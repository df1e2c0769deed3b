"""Which epoll instance is Gloo's, and which of its sockets may be shut down? Imitations, since the kernel decides."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from worker_client.inprocess.releasing.gloo_waits import shut_down_gloo_connections

LIBC = ctypes.CDLL(None, use_errno=True)
EVENT = struct.Struct("=IQ" if platform.machine() == "x86_64" else "@IQ")
EPOLL_CTL_ADD = 1
WAIT_S = 10.0
GLOO = "gloo_tcp_loop"


class Loop:
    """An epoll instance with a pipe, a listener and one connection, as Gloo makes them."""

    def __init__(self, *, flags: int = 0, stores_pointers: bool = True) -> None:
        self.descriptor = LIBC.epoll_create1(flags)
        self.reader, self.writer = os.pipe()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.peer = socket.create_connection(self.listener.getsockname(), WAIT_S)
        self.connection, _ = self.listener.accept()
        self._stores_pointers = stores_pointers
        for descriptor in (self.reader, self.listener.fileno(), self.connection.fileno()):
            self.watch(descriptor)
        self._thread: threading.Thread | None = None

    def watch(self, descriptor: int) -> None:
        data = 0x7F00_0000_0000 + descriptor if self._stores_pointers else descriptor
        event = ctypes.create_string_buffer(EVENT.pack(select.EPOLLIN, data), EVENT.size)
        assert LIBC.epoll_ctl(self.descriptor, EPOLL_CTL_ADD, descriptor, event) == 0

    def wait_in(self, name: str) -> None:
        """Starts a thread of this name that waits in the instance."""
        native_id: list[int] = []

        def run() -> None:
            native_id.append(threading.get_native_id())
            Path(f"/proc/self/task/{native_id[0]}/comm").write_text(name)
            os.eventfd_write(ready, 1)
            LIBC.epoll_wait(self.descriptor, ctypes.create_string_buffer(64 * EVENT.size), 1, -1)

        ready = os.eventfd(0)
        self._thread = threading.Thread(target=run)
        self._thread.start()
        os.eventfd_read(ready)
        os.close(ready)
        deadline_s = monotonic() + WAIT_S
        syscall = Path(f"/proc/self/task/{native_id[0]}/syscall")
        while f" {self.descriptor:#x} " not in syscall.read_text():
            assert monotonic() < deadline_s

    def is_alive(self) -> bool:
        self.peer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            return self.peer.recv(1) != b""
        return True

    def accepts(self) -> bool:
        with socket.create_connection(self.listener.getsockname(), WAIT_S):
            self.listener.accept()[0].close()
        return True

    def close(self) -> None:
        os.write(self.writer, b"x")
        if self._thread is not None:
            self._thread.join()
        for item in (self.listener, self.peer, self.connection):
            item.close()
        for descriptor in (self.descriptor, self.reader, self.writer):
            os.close(descriptor)


@pytest.fixture
def new_loop() -> Iterator[Callable[..., Loop]]:
    made: list[Loop] = []

    def make(name: str | None = None, *, flags: int = 0, stores_pointers: bool = True) -> Loop:
        made.append(Loop(flags=flags, stores_pointers=stores_pointers))
        if name is not None:
            made[-1].wait_in(name)
        return made[-1]

    yield make
    for loop in made:
        loop.close()


def test_a_connection_in_which_gloos_thread_waits_ends_and_its_listener_does_not(new_loop: Callable[..., Loop]):
    loop = new_loop(GLOO)
    assert shut_down_gloo_connections() == 1
    assert not loop.is_alive()
    assert loop.accepts()


def test_a_connection_that_is_being_established_ends_too(new_loop: Callable[..., Loop]):
    """To a host without power, which answers nothing."""
    loop = new_loop()
    with socket.socket() as silent, socket.socket() as filler, socket.socket() as connecting:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        filler.connect(silent.getsockname())
        connecting.setblocking(False)
        connecting.connect_ex(silent.getsockname())
        loop.watch(connecting.fileno())
        loop.wait_in(GLOO)
        assert shut_down_gloo_connections() == 2
        assert connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET


def test_all_loops_of_gloo_are_found(new_loop: Callable[..., Loop]):
    loops = [new_loop(GLOO) for _ in range(3)]
    assert shut_down_gloo_connections() == 3
    assert not any(loop.is_alive() for loop in loops)


def test_the_like_of_gloos_epoll_in_which_another_thread_waits_is_not_touched(new_loop: Callable[..., Loop]):
    gloo, other = new_loop(GLOO), new_loop("other")
    assert shut_down_gloo_connections() == 1
    assert not gloo.is_alive()
    assert other.is_alive()


@pytest.mark.parametrize("name", [None, "python"])
def test_without_a_thread_of_that_name_gloos_epoll_is_known_by_its_make(
    new_loop: Callable[..., Loop], name: str | None
):
    loop = new_loop(name)
    assert shut_down_gloo_connections() == 1
    assert not loop.is_alive()


def test_epolls_of_another_make_are_not_touched(new_loop: Callable[..., Loop]):
    loops = [new_loop("python", flags=os.O_CLOEXEC), new_loop("python", stores_pointers=False)]
    assert shut_down_gloo_connections() == 0
    assert all(loop.is_alive() and loop.accepts() for loop in loops)


def test_a_number_that_now_belongs_to_another_connection_is_not_touched(new_loop: Callable[..., Loop]):
    """The kernel keeps the entry under its old number while any copy of the old socket is open."""
    loop, bystander = new_loop(GLOO), new_loop(flags=os.O_CLOEXEC)
    number = loop.connection.fileno()
    kept = os.dup(number)
    os.dup2(bystander.connection.fileno(), number)
    try:
        assert shut_down_gloo_connections() == 0
        assert bystander.is_alive()
    finally:
        os.close(kept)


def test_other_sockets_in_gloos_epoll_are_left_alone(new_loop: Callable[..., Loop]):
    """One that is not TCP, and one that is not connected."""
    loop = new_loop(GLOO)
    near, far = socket.socketpair()
    unconnected = socket.socket()
    with near, far, unconnected:
        loop.watch(near.fileno())
        loop.watch(unconnected.fileno())
        assert shut_down_gloo_connections() == 1
        near.sendall(b"x")
        assert far.recv(1) == b"x"


def test_a_second_abort_finds_nothing_and_no_descriptor_is_leaked(new_loop: Callable[..., Loop]):
    new_loop(GLOO)
    held = len(os.listdir("/proc/self/fd"))
    assert shut_down_gloo_connections() == 1
    assert shut_down_gloo_connections() in (0, 1)  # 1 as long as the peer has not closed
    assert len(os.listdir("/proc/self/fd")) == held
