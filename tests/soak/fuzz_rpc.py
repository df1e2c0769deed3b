"""Which readers take the bytes of a gRPC connection: those of a server that we ask, and those of our own clients?"""

from __future__ import annotations

import asyncio

from h2.config import H2Configuration
from h2.connection import H2Connection
from nvhcd import nvhcd_pb2

from supervisor.edges.rpc.grpc_client import GrpcClient
from supervisor.edges.rpc.grpc_connection import Call, GrpcConnection, Places
from supervisor.edges.rpc.message_framing import framed

MESSAGE_BYTES_MAX = 64 * 1024
PART_BYTES = 700  # so that frames are cut, too
PATH = "/nvhcd.HealthCheckService/RunHealthCheck"


class Peer:
    """Says these bytes and ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def receive(self) -> bytes:
        data, self._data = self._data[:PART_BYTES], self._data[PART_BYTES:]
        return data

    async def send(self, data: bytes) -> bool:
        return bool(data)


def answers() -> list[bytes]:
    """Returns what a server says in its first call: an answer, a refusal, a reset, an end of the connection."""
    return [*map(_said, ("answer", "refuse", "reset", "end"))]


def requests() -> list[bytes]:
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    headers = {":method": "POST", ":scheme": "http", ":path": PATH, ":authority": "a", "te": "trailers"}
    for number in (1, 3):
        client.send_headers(number, list({**headers, "content-type": "application/grpc"}.items()))
        client.send_data(number, framed(nvhcd_pb2.HealthCheckRequest(args=["--no-slurm"]).SerializeToString()))
    client.end_stream(1)
    client.reset_stream(3)
    return [client.data_to_send()]


def read_answer(data: bytes) -> None:
    async def read() -> None:
        client = GrpcClient(Peer(data), name="S", message_bytes_max=MESSAGE_BYTES_MAX)
        payload = await client.unary(PATH, b"", timeout_s=5)
        assert len(payload) <= MESSAGE_BYTES_MAX

    asyncio.run(read())


def read_requests(data: bytes) -> None:
    async def answer(call: Call) -> None:
        while (message := await call.receive()) is not None:
            await call.send(message)

    async def read() -> None:
        handlers = {PATH.encode(): answer}
        await GrpcConnection(Peer(data), handlers, Places(4), message_bytes_max=MESSAGE_BYTES_MAX).run()

    asyncio.run(read())


def _said(kind: str) -> bytes:
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(_asked())
    head = [(":status", "200"), ("content-type", "application/grpc")]
    if kind == "refuse":
        server.send_headers(1, [*head, ("grpc-status", "8"), ("grpc-message", "no %C3%A9")], end_stream=True)
    elif kind == "reset":
        server.reset_stream(1)
    elif kind == "end":
        server.close_connection()
    else:
        reply = nvhcd_pb2.HealthCheckResponse(success=True, output='{"fail_count": 0}' * 200)
        server.send_headers(1, head)
        server.send_data(1, framed(reply.SerializeToString()))
        server.send_headers(1, [("grpc-status", "0")], end_stream=True)
    return server.data_to_send()


def _asked() -> bytes:
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    headers = {":method": "POST", ":scheme": "http", ":path": PATH, ":authority": "a", "te": "trailers"}
    client.send_headers(1, list(headers.items()), end_stream=True)
    return client.data_to_send()
