"""What answer does a peer get that may not call, or can't be answered? A gRPC refusal with its reason.

This module speaks the few frames of HTTP/2 that a refusal needs: a stranger must not be able to load the control API or
send it a single byte, and it may be memory for the control API that is missing.
"""

from __future__ import annotations

import base64
import contextlib
import socket

import anyio

from supervisor.edges.machine.processes.socket_stream import SocketStream
from supervisor.edges.rpc.statuses import Status, percent_encoded
from supervisor.errors import HoldfastError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TIMEOUT_S = 5.0
FRAME_BYTES_MAX = 16_384  # HTTP/2's default maximum
BYTES_MAX = 256 * 1024  # read from one peer
_HEADERS, _SETTINGS, _PING = 1, 4, 6
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4


async def refuse(client: socket.socket, refusal: HoldfastError) -> None:
    """Answers each of its calls with `refusal`, for at most TIMEOUT_S. Never raises because of the peer."""
    stream = SocketStream(client)
    with anyio.move_on_after(TIMEOUT_S):
        waiting = b""
        heard = 0
        preface_is_due = True
        await stream.send(_frame(_SETTINGS, 0, 0, b""))
        while heard < BYTES_MAX and (data := await stream.receive()):
            heard += len(data)
            waiting += data
            if preface_is_due:
                if len(waiting) < len(PREFACE):
                    continue
                if not waiting.startswith(PREFACE):
                    return
                waiting = waiting[len(PREFACE) :]
                preface_is_due = False
            answers, waiting = _answer(waiting, refusal)
            if len(waiting) > FRAME_BYTES_MAX + 9 or not await stream.send(answers):
                return


def _answer(data: bytes, refusal: HoldfastError) -> tuple[bytes, bytes]:
    """Returns the answer to the complete frames in `data`, and the rest."""
    answers = b""
    while len(data) >= 9:
        length = int.from_bytes(data[:3])
        if len(data) < 9 + length:
            break
        kind, flags, stream = data[3], data[4], int.from_bytes(data[5:9]) & 0x7FFFFFFF
        payload, data = data[9 : 9 + length], data[9 + length :]
        if kind == _SETTINGS and not flags & _ACK:
            answers += _frame(_SETTINGS, _ACK, 0, b"")
        elif kind == _PING and not flags & _ACK:
            answers += _frame(_PING, _ACK, 0, payload)
        elif kind == _HEADERS:
            answers += _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, _trailers(refusal))
    return answers, data


def _trailers(refusal: HoldfastError) -> bytes:
    status, detail = int(Status.RESOURCE_EXHAUSTED), b""
    with contextlib.suppress(ImportError, MemoryError, OSError):  # Memory may be what is missing: the text is enough.
        from supervisor.edges.operators.control_codec import code_of, refusal_to_wire  # Late: refusals are rare.

        status, detail = code_of(refusal), base64.b64encode(refusal_to_wire(refusal)).rstrip(b"=")
    headers = {
        b"content-type": b"application/grpc",
        b"grpc-status": str(status).encode(),
        b"grpc-message": percent_encoded(str(refusal)),
    }
    if detail:
        headers[b"grpc-status-details-bin"] = detail
    block = b"\x88"  # :status 200, by its number in the static table
    for name, value in headers.items():
        block += b"\x00" + _length(len(name)) + name + _length(len(value)) + value  # literal, not indexed or compressed
    return block


def _length(number: int) -> bytes:
    """Encodes an integer with a prefix of seven bits, as HPACK does."""
    if number < 127:
        return bytes([number])
    number -= 127
    out = bytearray([127])
    while number >= 128:
        out.append(number % 128 + 128)
        number //= 128
    out.append(number)
    return bytes(out)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
