"""Are calls made as any gRPC server expects, and is every other answer an error with its reason? Attacks on a client
in use: tests/edges/machine/health/test_nvhcd_client.py.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import PingReceived, RequestReceived, StreamReset
from h2.settings import SettingCodes

from supervisor.edges.machine.processes.socket_stream import SocketStream
from supervisor.edges.rpc import grpc_client as client_module
from supervisor.edges.rpc.grpc_client import OVERHEAD_BYTES_MAX, ClientCall, GrpcClient
from supervisor.edges.rpc.grpc_connection import Call, GrpcConnection, Places
from supervisor.edges.rpc.statuses import CallError, MessageTooLargeError, Status

BYTES_MAX = 200_000
LIMIT_S = 10.0


# --- a server of gRPC's library ------------------------------------------------------------------------------------


def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
    told = cast("Any", context)
    if request == b"refuse":
        told.abort(grpc.StatusCode.NOT_FOUND, "there is none: 100 %, café")
    if request == b"deadline":
        return str(round(told.time_remaining())).encode()
    if request == b"metadata":
        return dict(told.invocation_metadata())["token"].encode()
    return request * (BYTES_MAX + 1 if request == b"l" else 1)


def echo(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    del context
    for request in requests:
        if request == b"end":
            return
        yield request


@pytest.fixture
def server(tmp_path: Path) -> Generator[Path]:
    path = tmp_path / "s"
    untyped = cast("Any", grpc)
    methods = {
        "C": untyped.unary_unary_rpc_method_handler(answer),
        "Echo": untyped.stream_stream_rpc_method_handler(echo),
    }
    served = untyped.server(futures.ThreadPoolExecutor(2))
    served.add_generic_rpc_handlers((untyped.method_handlers_generic_handler("a.B", methods),))
    served.add_insecure_port(f"unix:{path}")
    served.start()
    yield path
    served.stop(0).wait()


@contextmanager
def connected(path: Path) -> Generator[GrpcClient]:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        peer.setblocking(False)
        yield GrpcClient(SocketStream(peer), name="S", message_bytes_max=BYTES_MAX)


async def ask(client: GrpcClient, request: bytes, method: str = "/a.B/C", **told: Any) -> bytes:  # noqa: ANN401
    return await client.unary(method, request, timeout_s=7, **told)


async def test_answers_the_deadline_and_metadata(server: Path) -> None:
    with connected(server) as client:
        for request in (b"x", b"", b"y" * BYTES_MAX):
            assert await ask(client, request) == request
        assert await ask(client, b"deadline") in (b"6", b"7")
        assert await ask(client, b"metadata", metadata=[("token", "secret")]) == b"secret"


async def test_a_status_is_told_with_its_text_and_costs_no_other_call(server: Path) -> None:
    with connected(server) as client:
        with pytest.raises(CallError, match=r"^there is none: 100 %, café$") as refused:
            await ask(client, b"refuse")
        assert refused.value.status is Status.NOT_FOUND
        with pytest.raises(CallError) as unknown:
            await ask(client, b"x", "/a.B/D")
        assert unknown.value.status is Status.UNIMPLEMENTED
        with pytest.raises(MessageTooLargeError):
            await ask(client, b"l")
        assert await ask(client, b"x") == b"x"


async def test_messages_go_both_ways_and_other_calls_beside_them(server: Path) -> None:
    with connected(server) as client, anyio.fail_after(LIMIT_S), client.call("/a.B/Echo") as call:
        for message in (b"one", b"x" * 150_000):
            await call.send(message)
            assert await call.receive() == message
        assert await ask(client, b"beside") == b"beside"
        await call.send(b"last", is_last=True)
        assert [await call.receive(), await call.receive()] == [b"last", None]
    with connected(server) as client, anyio.fail_after(LIMIT_S), client.call("/a.B/Echo") as call:
        await call.send(b"end")
        assert await call.receive() is None
        await call.send(b"too late")


# --- our own server ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def pair(**handlers: Callable[[Call], Any]) -> AsyncGenerator[tuple[GrpcClient, Places]]:
    mine, other = socket.socketpair()
    paths = {f"/{name}".encode(): handler for name, handler in handlers.items()}
    places = Places(8)
    with mine, other:
        for each in (mine, other):
            each.setblocking(False)
        connection = GrpcConnection(SocketStream(other), paths, places, message_bytes_max=BYTES_MAX)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.run)
            yield GrpcClient(SocketStream(mine), name="S", message_bytes_max=BYTES_MAX), places
            tasks.cancel_scope.cancel()


async def echo_one(call: Call) -> None:
    await call.send(await call.receive() or b"")


async def hang(call: Call) -> None:
    await call.send(await call.receive() or b"")
    await anyio.sleep_forever()


async def test_whoever_waits_reads_for_all_and_may_leave() -> None:
    async with pair(hang=hang, echo=echo_one) as (client, places):
        answers: list[bytes] = []
        requests = [b"%d" % number * 9_000 for number in range(6)]

        async def ask_for(request: bytes) -> None:
            answers.append(await client.unary("/echo", request, timeout_s=LIMIT_S))

        with client.call("/hang") as call:
            await call.send(b"first")
            assert await call.receive() == b"first"
            with anyio.fail_after(LIMIT_S):
                async with anyio.create_task_group() as tasks:
                    leaving = anyio.CancelScope()

                    async def leave() -> None:
                        with leaving:
                            await call.receive()

                    tasks.start_soon(leave)  # it reads for the others
                    for request in requests:
                        tasks.start_soon(ask_for, request)
                    await anyio.wait_all_tasks_blocked()
                    leaving.cancel()
            assert sorted(answers) == sorted(requests)
        assert await client.unary("/echo", b"x", timeout_s=LIMIT_S) == b"x"
        with anyio.fail_after(LIMIT_S):
            while places.taken:  # The server hears that the call was given up.
                await anyio.lowlevel.checkpoint()


async def test_a_deadline_is_the_callers_and_names_the_peer() -> None:
    async with pair(hang=hang, echo=echo_one) as (client, _):
        with pytest.raises(CallError, match=r"^S has not answered within 0.1 s$") as late:
            await client.unary("/hang", b"x", timeout_s=0.1)
        assert late.value.status is Status.DEADLINE_EXCEEDED
        assert await client.unary("/echo", b"x", timeout_s=LIMIT_S) == b"x"


async def test_each_call_ends_with_its_connection() -> None:
    mine, other = socket.socketpair()
    with mine, other:
        mine.setblocking(False)
        client = GrpcClient(SocketStream(mine), name="S", message_bytes_max=BYTES_MAX)
        ended: list[CallError] = []

        async def wait() -> None:
            with pytest.raises(CallError) as told, client.call("/x") as call:
                await call.receive()
            ended.append(told.value)

        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(wait)
                await anyio.wait_readable(other)
                other.shutdown(socket.SHUT_RDWR)
        assert [(each.status, str(each)) for each in ended] == [(Status.UNAVAILABLE, "S has closed the connection")] * 3
        with pytest.raises(CallError, match="S has closed the connection"), client.call("/x"):
            pass


# --- peers that do as they like ------------------------------------------------------------------------------------


class Peer:
    """Speaks HTTP/2 as wrongly as a test wants."""

    def __init__(self, sock: socket.socket) -> None:
        self.stream = SocketStream(sock)
        self.h2 = H2Connection(H2Configuration(client_side=False, validate_outbound_headers=False))
        self.h2.initiate_connection()

    async def until(self, kind: type) -> Any:  # noqa: ANN401
        while True:
            await self.stream.send(self.h2.data_to_send())
            data = await self.stream.receive()
            assert data
            for event in self.h2.receive_data(data):
                if isinstance(event, kind):
                    return event

    async def say(self, headers: dict[str, str], *, data: bytes = b"", trailers: dict[str, str] | None = None) -> None:
        number = (await self.until(RequestReceived)).stream_id
        self.h2.send_headers(number, list(headers.items()), end_stream=not data and trailers is None)
        if data:
            self.h2.send_data(number, data, end_stream=trailers is None)
        if trailers is not None:
            self.h2.send_headers(number, list(trailers.items()), end_stream=True)
        await self.stream.send(self.h2.data_to_send())


@asynccontextmanager
async def against() -> AsyncGenerator[tuple[GrpcClient, Peer, socket.socket]]:
    mine, other = socket.socketpair()
    with mine, other:
        for each in (mine, other):
            each.setblocking(False)
        yield GrpcClient(SocketStream(mine), name="S", message_bytes_max=BYTES_MAX), Peer(other), other


@pytest.mark.parametrize(
    ("headers", "data", "trailers", "status", "text"),
    [
        ({":status": "503"}, b"", None, Status.UNAVAILABLE, "HTTP's status 503"),
        ({":status": "200"}, b"", None, Status.UNKNOWN, "no status"),
        ({":status": "200", "grpc-status": "9" * 5_000}, b"", None, Status.UNKNOWN, "no status"),
        ({":status": "200", "grpc-status": "٣"}, b"", None, Status.UNKNOWN, "no status"),
        ({":status": "200"}, b"\0\0\0\0\5x", {"grpc-status": "0"}, Status.INTERNAL, "cut off"),
        ({":status": "200"}, b"\1\0\0\0\1x", {"grpc-status": "0"}, Status.UNIMPLEMENTED, "compressed"),
        ({":status": "200"}, b"\0\0\0\0\0" * 2, {"grpc-status": "0"}, Status.UNIMPLEMENTED, "not one answer"),
        ({":status": "200"}, b"", {"grpc-status": "0"}, Status.UNIMPLEMENTED, "not one answer"),
        ({":status": "200", "grpc-status": "14", "grpc-message": "%zz%e9" + "x" * 9_000}, b"", None,
         Status.UNAVAILABLE, "%zz"),
    ],
)  # fmt: skip
async def test_every_other_answer_is_an_error(
    headers: dict[str, str], data: bytes, trailers: dict[str, str] | None, status: Status, text: str
) -> None:
    async with against() as (client, peer, _), anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: peer.say(headers, data=data, trailers=trailers))
        with pytest.raises(CallError, match=text) as told:
            await client.unary("/x", b"", timeout_s=LIMIT_S)
        assert told.value.status is status
        assert len(str(told.value)) < 500


@pytest.mark.parametrize(
    ("code", "status"), [(7, Status.UNAVAILABLE), (8, Status.CANCELLED), (2, Status.INTERNAL), (99, Status.INTERNAL)]
)
async def test_a_call_that_the_peer_resets(code: int, status: Status) -> None:
    async with against() as (client, peer, other), anyio.create_task_group() as tasks:

        async def reset() -> None:
            number = (await peer.until(RequestReceived)).stream_id
            await SocketStream(other).send(b"\0\0\4\3\0" + struct.pack(">II", number, code))

        tasks.start_soon(reset)
        with pytest.raises(CallError, match=f"code {code}") as told:
            await client.unary("/x", b"", timeout_s=LIMIT_S)
        assert told.value.status is status


FRAMES = {
    "settings": b"\0\0\0\4\0\0\0\0\0",
    "pings": b"\0\0\x08\6\0\0\0\0\0" + bytes(8),
    "ends of a connection": b"\0\0\x08\7\0\0\0\0\0" + bytes(8),
    "garbage": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "data of no stream": b"\0\0\1\0\0\0\0\0\1x",
}


@pytest.mark.parametrize("kind", FRAMES)
async def test_a_flood_of_what_is_no_answer_ends_the_connection(kind: str) -> None:
    async with against() as (client, _, other), anyio.create_task_group() as tasks:
        sent = 0

        async def flood() -> None:
            nonlocal sent
            stream = SocketStream(other)
            while await stream.send(FRAMES["settings"] if not sent else FRAMES[kind] * 100):
                sent += 100 * len(FRAMES[kind])
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(flood)
        with pytest.raises(CallError) as told:
            await client.unary("/x", b"", timeout_s=LIMIT_S)
        assert told.value.status is Status.UNAVAILABLE
        assert client.lost.startswith("S ")
        assert sent < 20 * OVERHEAD_BYTES_MAX
        tasks.cancel_scope.cancel()


async def test_a_silent_peer_is_asked_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PING_AFTER_S", 0.1)
    async with against() as (client, peer, _), anyio.create_task_group() as tasks:
        failed: list[str] = []

        async def listen(call: ClientCall) -> None:
            try:
                await call.receive()
            except CallError as error:
                failed.append(str(error))

        with anyio.fail_after(LIMIT_S):
            with client.call("/x") as call:
                tasks.start_soon(listen, call)
                for _ in range(3):
                    await peer.until(PingReceived)  # h2 answers it
                await peer.stream.send(peer.h2.data_to_send())
                monkeypatch.setattr(client_module, "PONG_S", 0.1)
                while not failed:
                    await anyio.lowlevel.checkpoint()
        assert "S has been silent for 0." in failed[0]


async def test_short_calls_one_after_the_other_find_a_silent_peer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PING_AFTER_S", 0.1)
    monkeypatch.setattr(client_module, "PONG_S", 0.1)
    async with against() as (client, _, _):
        with anyio.fail_after(LIMIT_S):
            while not client.lost:
                with pytest.raises(CallError):
                    await client.unary("/x", b"", timeout_s=0.08)
        assert "S has been silent for 0." in client.lost


async def test_a_connection_that_nobody_used_is_no_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PING_AFTER_S", 0.1)
    async with pair(echo=echo_one) as (client, _):
        for _ in range(2):
            assert await client.unary("/echo", b"x", timeout_s=LIMIT_S) == b"x"
            await anyio.sleep(0.3)
            assert client._pinged_at_s is None  # pyright: ignore[reportPrivateUsage]


async def lets_send(client: GrpcClient, peer: Peer) -> None:
    """Opens the windows, so that only the socket bounds what is sent."""
    peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 30})
    peer.h2.increment_flow_control_window(1 << 30)
    await peer.stream.send(peer.h2.data_to_send())
    await client.until_greeted()


async def test_a_peer_that_does_not_read_costs_the_deadline_and_the_connection() -> None:
    async with against() as (client, peer, _):
        with anyio.fail_after(LIMIT_S):
            await lets_send(client, peer)
            with pytest.raises(CallError, match="has not answered"):
                await client.unary("/x", bytes(10_000_000), timeout_s=0.2)
        assert client.lost == "S does not read"


async def test_who_reads_a_connection_hears_at_once_that_it_can_not_be_used() -> None:
    """Its socket may then be closed, and its number be another's."""
    async with against() as (client, peer, _), anyio.create_task_group() as tasks:
        failed: list[str] = []

        async def listen() -> None:
            with pytest.raises(CallError) as told, client.call("/x") as call:
                await call.receive()
            failed.append(str(told.value))

        with anyio.fail_after(3.0):  # much less than after a silence
            await lets_send(client, peer)
            tasks.start_soon(listen)
            with pytest.raises(CallError):
                await client.unary("/x", bytes(10_000_000), timeout_s=0.2)
            await client.end()
            while not failed:
                await anyio.lowlevel.checkpoint()
        assert failed == ["S does not read"]


async def test_a_call_that_is_given_up_is_told_with_the_next_one() -> None:
    async with against() as (client, peer, _):
        with anyio.fail_after(LIMIT_S):
            with client.call("/x") as call:
                await call.send(b"x")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.until, StreamReset)
                with pytest.raises(CallError):
                    await client.unary("/x", b"", timeout_s=0.2)
