"""How is an HTTP service asked that may be slow, hostile or dead? One connection for each request, with h11.

Everything is bounded: the total time and the length of the answer. A redirect is treated like any other answer: nothing
is sent to a host that the user has not named. Threads resolve names and load certificates.
"""

from __future__ import annotations

import os
import socket
import ssl
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import anyio
import h11
import msgspec
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

import supervisor
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.edges.machine.processes.tcp_peer_user import stranger_listening_at

ANSWER_BYTES_MAX = 1 << 20
HEAD_BYTES_MAX = 65_536
READ_BYTES = 65_536
STUCK_MAX = 4  # abandoned threads that still resolve a name or read a file
UNTRUSTED = (18, 19, 20, 21)  # OpenSSL's codes for a certificate from an authority that the system does not know
PORTS = {"http": 80, "https": 443}


class NoAnswerError(Exception):
    """Raised if no readable answer came; its text is the end of a sentence that says why."""


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes


class HttpClient:
    """A client of one service at an http or https URL. Use it only from the event loop's thread."""

    def __init__(self, url: str, *, timeout_s: float, only_own_user: bool = False) -> None:
        """`timeout_s`: for each request, from its start to the last byte of its answer. `only_own_user`: the service
        is a process of this user on a loopback address, and no other user's process there is asked or believed."""
        parts = urlsplit(url)
        self._scheme, self._host = parts.scheme, parts.hostname or ""
        self._port = parts.port or PORTS[parts.scheme]
        self._authority, self._base = parts.netloc, parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._only_own_user = only_own_user
        self._threads = SideThreads(stuck_max=STUCK_MAX)
        self._certificates: ssl.SSLContext | None = None

    async def ask(self, method: str, target: str, body: bytes | None = None) -> Answer:
        """Sends a request. `target`: path and query below the URL. `body`: JSON. Raises NoAnswerError."""
        try:
            with anyio.fail_after(self._timeout_s):
                self._check_user()
                async with await self._connected() as stream:
                    answer = await _converse(stream, self._request(method, target, body), body)
                self._check_user()  # Another process may have taken the port since.
                return answer
        except TimeoutError:
            raise NoAnswerError(f"it has not answered within {self._timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise NoAnswerError(_refusal(error)) from error
        except ssl.SSLError as error:
            raise NoAnswerError(f"TLS with it failed: {error.reason or error}") from error
        except OSError as error:
            raise NoAnswerError(_reason(error)) from error
        except (anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise NoAnswerError("it has closed the connection") from error
        except h11.RemoteProtocolError as error:
            raise NoAnswerError(f"its answer is not HTTP: {error}") from error

    def _check_user(self) -> None:
        if self._only_own_user and (whose := stranger_listening_at(self._host, self._port)):
            raise NoAnswerError(f"its port belongs to {whose}")

    def _request(self, method: str, target: str, body: bytes | None) -> h11.Request:
        headers = [
            ("host", self._authority),
            ("user-agent", f"holdfast/{supervisor.__version__}"),
            ("accept", "application/json"),
            ("connection", "close"),
        ]
        if body is not None:
            headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
        return h11.Request(method=method, target=f"{self._base}{target}", headers=headers)

    async def _connected(self) -> ByteStream:
        """Connects to the first address that answers. Raises OSError."""
        resolve = partial(socket.getaddrinfo, self._host, self._port, type=socket.SOCK_STREAM)
        found = await self._threads.call(resolve, timeout_s=self._timeout_s, discard=_nothing)
        addresses = tuple(dict.fromkeys(str(each[4][0]) for each in found))
        refusal: OSError = OSError(None, f"{self._host} has no address")
        for address in addresses:
            try:
                with anyio.fail_after(self._timeout_s / len(addresses)):
                    stream = await anyio.connect_tcp(address, self._port)
            except OSError as error:
                refusal = error
                continue
            return stream if self._scheme == "http" else await self._secured(stream)
        raise refusal

    async def _secured(self, stream: ByteStream) -> ByteStream:
        if self._certificates is None:
            self._certificates = await self._threads.call(
                ssl.create_default_context, timeout_s=self._timeout_s, discard=_nothing
            )
        try:
            return await TLSStream.wrap(
                stream, hostname=self._host, ssl_context=self._certificates, standard_compatible=False
            )
        except BaseException:  # whatever it is, close the stream and raise it again
            await anyio.aclose_forcefully(stream)
            raise


async def _converse(stream: ByteStream, request: h11.Request, body: bytes | None) -> Answer:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
    events: list[h11.Event] = [request, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
    await stream.send(b"".join(connection.send(event) or b"" for event in events))
    status, answer = 0, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            received = await _received(stream)
            if not received and not status:
                raise NoAnswerError("it has closed the connection")
            connection.receive_data(received)
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            answer += event.data
            if len(answer) > ANSWER_BYTES_MAX:
                raise NoAnswerError(f"its answer is longer than {ANSWER_BYTES_MAX >> 20} MiB")
        elif isinstance(event, h11.EndOfMessage):
            return Answer(status, answer)
        elif isinstance(event, h11.ConnectionClosed):
            raise NoAnswerError("it has closed the connection")


async def _received(stream: ByteStream) -> bytes:
    try:
        return await stream.receive(READ_BYTES)
    except anyio.EndOfStream:
        return b""  # the end of an answer without a length; h11 says whether that is allowed


def _reason(error: OSError) -> str:
    """Returns the kernel's reason. anyio may wrap several attempts in one error."""
    told: OSError = error
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cast("BaseExceptionGroup[BaseException]", cause).exceptions[0]
    if isinstance(cause, OSError):
        told = cause
    by_kernel = os.strerror(told.errno) if told.errno and told.errno > 0 else ""  # asyncio's text contains the address
    return (by_kernel or told.strerror or str(told) or type(told).__name__).lower()


def _refusal(error: ssl.SSLCertVerificationError) -> str:
    remedy = "check the URL and the certificate"
    if error.verify_code in UNTRUSTED:
        remedy = "if its authority is your own, name the authority's file in SSL_CERT_FILE"
    return f"its certificate is refused: {error.verify_message.rstrip('.')}; {remedy}"


def _nothing(result: object) -> None:
    """Ignores a result that came too late."""
