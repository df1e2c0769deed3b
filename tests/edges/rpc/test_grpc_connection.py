"""What do clients get that leave, do not read, send too much or speak something else? Others: test_control_api.py."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, TrailersReceived
from h2.exceptions import H2Error

from supervisor.edges.machine.processes.socket_stream import SocketStream
from supervisor.edges.rpc import grpc_connection
from supervisor.edges.rpc.grpc_connection import (
    UNSENT_BYTES_MAX,
    Call,
    GrpcConnection,
    Handler,
    Places,
    unless_cancelled,
)

MESSAGE_BYTES_MAX = 1 << 20
HEADERS = {
    ":method": "POST",
    ":scheme": "http",
    ":authority": "a",
    "te": "trailers",
    "content-type": "application/grpc",
}


class Client:
    """Speaks HTTP/2 as slowly or wrongly as a test wants."""

    def __init__(self, sock: socket.socket) -> None:
        self.stream = SocketStream(sock)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="ascii"))
        self.h2.initiate_connection()
        self.data = bytearray()
        self.headers: dict[str, str] = {}

    async def call(self, path: str, message: bytes, *, flag: int = 0, length: int | None = None) -> int:
        """Sends as much of a request as its window permits."""
        number = self.begin(path, message, flag=flag, length=length)
        await self.flush()
        return number

    def begin(self, path: str, message: bytes, *, flag: int = 0, length: int | None = None) -> int:
        """Does the same with the next flush."""
        number = self.h2.get_next_available_stream_id()
        self.h2.send_headers(number, list({":path": path, **HEADERS}.items()))
        data = bytes([flag]) + (len(message) if length is None else length).to_bytes(4) + message
        for begin in range(0, min(len(data), 60_000), 16_000):
            self.h2.send_data(number, data[begin : begin + 16_000])
        return number

    async def flush(self) -> None:
        await self.stream.send(self.h2.data_to_send())

    async def read(self) -> list[Event]:
        data = await self.stream.receive()
        if not data:
            raise EOFError
        events = self.h2.receive_data(data)
        for event in events:
            if isinstance(event, DataReceived):
                self.data += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, ResponseReceived | TrailersReceived):
                self.headers |= {str(name): str(value) for name, value in event.headers}
        await self.flush()
        return events

    async def read_all(self) -> None:
        """Reads until the connection ends."""
        with anyio.fail_after(10):
            while True:
                await self.read()

    async def read_to_end(self, number: int) -> None:
        with anyio.fail_after(10):
            while not any(isinstance(each, StreamEnded) and each.stream_id == number for each in await self.read()):
                pass


@asynccontextmanager
async def connected(**handlers: Handler) -> AsyncGenerator[tuple[Client, GrpcConnection, Places]]:
    mine, other = socket.socketpair()
    for each in (mine, other):
        each.setblocking(False)
    paths: Mapping[bytes, Handler] = {f"/{name}".encode(): handler for name, handler in handlers.items()}
    places = Places(8)
    connection = GrpcConnection(SocketStream(other), paths, places, message_bytes_max=MESSAGE_BYTES_MAX)

    async def serve() -> None:
        with other:
            await connection.run()

    with mine:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            await anyio.lowlevel.checkpoint()
            yield Client(mine), connection, places
            tasks.cancel_scope.cancel()


async def echo(call: Call) -> None:
    while (message := await call.receive()) is not None:
        await call.send(message)


async def test_each_message_is_answered_and_the_end_has_a_status() -> None:
    async with connected(echo=echo) as (client, _, places):
        number = await client.call("/echo", b"one")
        client.h2.send_data(number, b"\0\0\0\0\3two", end_stream=True)
        await client.flush()
        await client.read_to_end(number)
        assert bytes(client.data) == b"\0\0\0\0\3one\0\0\0\0\3two"
        assert client.headers["grpc-status"] == "0"
        assert places.taken == 0


@pytest.mark.parametrize(
    ("path", "flag", "length", "status"),
    [("/other", 0, 1, "12"), ("/echo", 1, 1, "12"), ("/echo", 0, MESSAGE_BYTES_MAX + 1, "8")],
)
async def test_what_cannot_be_read_is_refused_before_it_has_come(
    path: str, flag: int, length: int, status: str
) -> None:
    async with connected(echo=echo) as (client, _, places):
        await client.read_to_end(await client.call(path, b"x", flag=flag, length=length))
        assert client.headers["grpc-status"] == status
        assert places.taken == 0


async def test_a_request_that_ends_too_early_is_refused() -> None:
    async with connected(echo=echo) as (client, _, _):
        number = await client.call("/echo", b"x", length=5)
        client.h2.end_stream(number)
        await client.flush()
        await client.read_to_end(number)
        assert client.headers["grpc-status"] == "13"


async def test_a_call_that_its_client_cancels_ends() -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def hang(call: Call) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with connected(hang=hang, echo=echo) as (client, _, places):
        number = await client.call("/hang", b"x")
        await begun.wait()
        client.h2.reset_stream(number)
        await client.flush()
        with anyio.fail_after(10):
            await ended.wait()
        number = await client.call("/echo", b"still served")
        client.h2.end_stream(number)
        await client.flush()
        await client.read_to_end(number)
        assert places.taken == 0


async def test_of_the_calls_that_are_cancelled_before_they_were_read_a_stop_is_obeyed_and_nothing_starts() -> None:
    """A service that was stopped reads the request and its end together: the client has given up by then."""
    handled: list[bytes | None] = []

    async def take(call: Call) -> None:
        handled.append(await call.receive())

    async with connected(start=unless_cancelled(take), stop=take, echo=echo) as (client, _, places):
        client.h2.reset_stream(client.begin("/start", b"start it"))
        client.h2.reset_stream(client.begin("/stop", b"stop it"))
        number = await client.call("/echo", b"one more")
        client.h2.end_stream(number)
        await client.flush()
        await client.read_to_end(number)
        assert bytes(client.data[5:]) == b"one more"
        assert handled == [b"stop it"]
        assert places.taken == 0


async def test_a_handler_that_answers_a_call_after_its_client_has_left_ends_without_a_fault() -> None:
    begun, left, faults, ended = anyio.Event(), anyio.Event(), list[Exception](), anyio.Event()

    async def late(call: Call) -> None:
        try:
            begun.set()
            with anyio.CancelScope(shield=True):
                await left.wait()
            await call.send(b"nobody reads this")
        except Exception as error:
            faults.append(error)
            raise
        finally:
            ended.set()

    async with connected(late=late, echo=echo) as (client, _, places):
        number = await client.call("/late", b"x")
        await begun.wait()
        client.h2.reset_stream(number)
        await client.flush()
        number = await client.call("/echo", b"one more")  # Answered after the reset was taken.
        client.h2.end_stream(number)
        await client.flush()
        await client.read_to_end(number)
        left.set()
        with anyio.fail_after(10):
            await ended.wait()
        assert not faults
        assert places.taken == 0


async def test_a_client_that_does_not_read_holds_up_its_call_and_no_memory() -> None:
    sent = 0

    async def flood(call: Call) -> None:
        nonlocal sent
        while True:
            await call.send(bytes(10_000))
            sent += 10_000

    async with connected(flood=flood) as (client, connection, _):
        client.h2.increment_flow_control_window(1 << 30)
        number = await client.call("/flood", b"x")
        client.h2.increment_flow_control_window(1 << 30, number)
        await client.flush()
        before = -1
        with anyio.fail_after(10):
            while sent != before or not sent:
                before = sent
                for _ in range(50):
                    await anyio.lowlevel.checkpoint()
        assert sent < 8 * UNSENT_BYTES_MAX
        await client.read()
        connection.end()


async def test_at_the_end_calls_in_flight_have_a_moment_and_their_last_words_arrive() -> None:
    over = anyio.Event()

    async def follow(call: Call) -> None:
        await over.wait()
        await call.send(b"the end " * 100_000)

    async with connected(follow=follow) as (client, connection, _):
        number = await client.call("/follow", b"x")
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        connection.end()
        over.set()
        await client.read_to_end(number)
        assert bytes(client.data[5:]) == b"the end " * 100_000
        with pytest.raises(EOFError):
            await client.read_all()


@pytest.mark.parametrize("reads", [True, False])
async def test_a_call_that_never_ends_holds_up_the_end_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    monkeypatch.setattr(grpc_connection, "STOP_GRACE_S", 0.1)
    monkeypatch.setattr(grpc_connection, "LAST_ANSWERS_S", 0.1)

    async def hang(call: Call) -> None:
        if not reads:
            await call.send(bytes(MESSAGE_BYTES_MAX))
        await anyio.sleep_forever()

    mine, other = socket.socketpair()
    with mine, other:
        for each in (mine, other):
            each.setblocking(False)
        places = Places(8)
        connection = GrpcConnection(SocketStream(other), {b"/hang": hang}, places, message_bytes_max=10)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(connection.run)
                await Client(mine).call("/hang", b"x")
                while not places.taken:
                    await anyio.lowlevel.checkpoint()
                connection.end()
        assert places.taken == 0


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(100_000), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff"]
)
async def test_who_speaks_something_else_loses_the_connection(garbage: bytes) -> None:
    mine, other = socket.socketpair()
    with mine, other:
        for each in (mine, other):
            each.setblocking(False)
        connection = GrpcConnection(SocketStream(other), {}, Places(1), message_bytes_max=10)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(connection.run)
                mine.send(garbage)
                mine.shutdown(socket.SHUT_WR)


async def test_a_client_that_sends_beyond_its_window_loses_the_connection() -> None:
    async def deaf(call: Call) -> None:
        await anyio.sleep_forever()

    async with connected(deaf=deaf) as (client, _, _):
        number = await client.call("/deaf", bytes(60_000))
        client.h2.outbound_flow_control_window = 1 << 20
        client.h2.streams[number].outbound_flow_control_window = 1 << 20
        for _ in range(4):
            client.h2.send_data(number, bytes(16_000))
        await client.flush()
        with pytest.raises((EOFError, H2Error)):
            await client.read_all()
