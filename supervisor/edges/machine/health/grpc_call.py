"""How is one gRPC call made on a connected socket without gRPC's library?

That library starts threads, and aborts the process that can't start one: see edges/operators/grpc_connection.py.
"""

from __future__ import annotations

import socket
import urllib.parse

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import H2Error

from supervisor.edges.machine.processes.socket_stream import SocketStream

OVERHEAD_BYTES_MAX = 64 * 1024  # that a peer may send beside its answer
_STREAM = 1
_PREFIX_BYTES = 5  # before the message: a flag for compression and four bytes of length
_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


class CallFailedError(Exception):
    """Raised if there is no answer; the text says why."""


class AnswerTooLargeError(Exception):
    """Raised if the answer is larger than permitted."""


async def call(peer: socket.socket, method: str, request: bytes, *, answer_bytes_max: int, timeout_s: float) -> bytes:
    """Returns the answer. The caller keeps the deadline; `timeout_s` tells it to the server."""
    return await _Call(peer, answer_bytes_max).make(method, request, timeout_s)


class _Call:
    def __init__(self, peer: socket.socket, answer_bytes_max: int) -> None:
        self._stream = SocketStream(peer)
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._answer_bytes_max = answer_bytes_max
        self._answer = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._has_ended = False

    async def make(self, method: str, request: bytes, timeout_s: float) -> bytes:
        self._h2.initiate_connection()
        headers = {
            ":method": "POST", ":scheme": "http", ":path": method, ":authority": "localhost", "te": "trailers",
            "content-type": "application/grpc", "grpc-timeout": f"{max(1, int(timeout_s * 1000))}m",
        }  # fmt: skip
        self._h2.send_headers(_STREAM, list(headers.items()))
        self._h2.send_data(_STREAM, b"\0" + len(request).to_bytes(4) + request, end_stream=True)
        heard_bytes = 0
        while not self._has_ended:
            await self._stream.send(self._h2.data_to_send())
            data = await self._stream.receive()
            heard_bytes += len(data)
            if not data:
                raise CallFailedError("the service has closed the connection")
            try:
                for event in self._h2.receive_data(data):
                    self._take(event)
            except H2Error as error:
                raise CallFailedError(f"the service does not speak gRPC ({type(error).__name__})") from error
            if heard_bytes - len(self._answer) > OVERHEAD_BYTES_MAX:
                raise CallFailedError("the service sends what is no answer")
        return self._judged()

    def _take(self, event: Event) -> None:
        match event:
            case ResponseReceived() | TrailersReceived():
                self._headers |= {bytes(name): bytes(value) for name, value in event.headers}
            case DataReceived():
                self._answer += event.data
                if len(self._answer) > self._answer_bytes_max + _PREFIX_BYTES:
                    raise AnswerTooLargeError
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded() | StreamReset():
                self._has_ended = True
            case _:
                pass

    def _judged(self) -> bytes:
        status = self._headers.get(b"grpc-status", b"").decode(errors="replace")
        if status != "0":
            name = _CODES[int(status)] if status.isdecimal() and int(status) < len(_CODES) else "no status"
            text = urllib.parse.unquote(self._headers.get(b"grpc-message", b"").decode(errors="replace"))
            raise CallFailedError(f"the call has failed with {name}: {text[:400]}")
        if len(self._answer) < _PREFIX_BYTES or self._answer[0]:
            raise CallFailedError("the answer is empty or compressed")
        return bytes(self._answer[_PREFIX_BYTES:])
