"""How does a node that costs almost nothing connect to its leader and understand the bytes that it gets?

See lean_nodes.py.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable

from holdfast_wire import framing
from holdfast_wire.framing import Decoder

from supervisor.edges.peers.codec import cluster_codec, cluster_versions
from supervisor.edges.peers.codec.cluster_frames import Greeting, Hello, Welcome
from supervisor.edges.peers.handshake.hello_exchange import Who
from supervisor.edges.peers.transport.cluster_line import FRAME_BYTES_MAX
from supervisor.edges.peers.transport.cluster_tls import Pipe, Tls
from supervisor.edges.peers.transport.preamble import REDIRECTED, Preamble, key_of

READ_BYTES = 256 * 1024
EVENTS_MAX = 16_384  # taken in one look: with fewer than all, a node that enters would wait for several looks

Take = Callable[[bytes], None]


def fail(why: str) -> None:
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


def framed(payload: bytes) -> bytes:
    return framing.encode(payload, frame_bytes_max=FRAME_BYTES_MAX)


class Wires:
    """The connections of this process."""

    def __init__(self, port: int, tls: Tls) -> None:
        self.port = port
        self.preamble_key = key_of(tls.token)
        self.tls = tls
        self._epoll = select.epoll()
        self._by_number: dict[int, Wire] = {}

    def serve(self, wait_s: float) -> None:
        by_number = self._by_number
        for number, events in self._epoll.poll(wait_s, EVENTS_MAX):
            if (wire := by_number.get(number)) is not None:
                wire.ready(events)

    def watch(self, number: int, wire: Wire, events: int) -> None:
        self._by_number[number] = wire
        self._epoll.register(number, events)

    def watch_again(self, number: int, events: int) -> None:
        self._epoll.modify(number, events)

    def forget(self, number: int) -> None:
        del self._by_number[number]
        self._epoll.unregister(number)


class Wire:
    """One TCP connection."""

    def __init__(self, wires: Wires, on_data: Take, *, kind: bytes) -> None:
        self._wires = wires
        self._on_data = on_data
        self._says = Preamble(kind, wires.preamble_key).says
        self._pipe = Pipe(wires.tls, leads=False)
        self._is_open = False
        self._unsent = b""
        self._sock = socket.socket()
        self._sock.setblocking(False)
        self._sock.connect_ex(("127.0.0.1", wires.port))
        wires.watch(self._sock.fileno(), self, select.EPOLLOUT)

    def write(self, data: bytes) -> None:
        self._pipe.write(data)
        self._put(self._pipe.outgoing())

    def _put(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._sock.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._unsent = data[sent:]
            self._wires.watch_again(self._sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._go_on()
        if events & ~select.EPOLLOUT:
            self._read()

    def _go_on(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._unsent = self._says
            self._pipe.read(b"")
            self._unsent += self._pipe.outgoing()
        data, self._unsent = self._unsent, b""
        self._wires.watch_again(self._sock.fileno(), select.EPOLLIN)
        self._put(data)

    def _read(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            fail(f"a connection has broken: {error}")
            return
        if not data:
            fail("the leader has closed a connection")
        elif data.startswith(REDIRECTED):  # TLS never begins like that.
            self._on_data(data)
        else:
            self._read_sealed(self._pipe, data)

    def _read_sealed(self, pipe: Pipe, data: bytes) -> None:
        said = pipe.read(data)
        if answer := pipe.outgoing():
            self._put(answer)
        if said:
            self._on_data(said)

    def end(self) -> None:
        self._wires.forget(self._sock.fileno())
        self._sock.close()


class Talk:
    """The introduction, then the messages."""

    def __init__(self, who: Who, *, relay_port: int = 0) -> None:
        self.who = who
        self._relay_port = relay_port
        self._decoder = Decoder(frame_bytes_max=FRAME_BYTES_MAX)
        self.is_welcome = False

    def take(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if self.is_welcome:
                self.hear(frame)
            else:
                self._introduce(frame)

    def _introduce(self, payload: bytes) -> None:
        match cluster_codec.decode(payload):
            case Greeting():
                who = self.who
                hello = Hello(
                    cluster_versions.NEWEST, who.job_id, who.node, who.incarnation,
                    oldest_version=cluster_versions.OLDEST, relay_port=self._relay_port,
                )  # fmt: skip
                self.write(framed(cluster_codec.encode(hello)))
            case Welcome():
                self.is_welcome = True
                self.welcomed()
            case other:
                fail(f"{self.who.node} is answered with {other}")

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def hear(self, frame: bytes) -> None:
        raise NotImplementedError

    def welcomed(self) -> None:
        raise NotImplementedError
