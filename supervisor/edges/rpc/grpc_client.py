"""How are gRPC calls made on one connection without gRPC's library?

That library starts threads, and aborts the process that can't start one: see grpc_connection.py. There is no
task here, either: the call that waits reads and writes for all of them. A connection on which none waits is not read.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import anyio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error

from supervisor.edges.rpc.message_framing import Messages, Stream, framed, send_part
from supervisor.edges.rpc.statuses import CallError, Status, percent_decoded, status_of

OVERHEAD_BYTES_MAX = 64 * 1024  # that a peer may send between two parts of answers
PING_AFTER_S = 5.5  # of silence: etcd ends connections that send a PING more often than every 5 s
PONG_S = 2.0
READ_S = 0.05  # at least, before a silence is judged: what has arrived was maybe not read yet
Metadata = Sequence[tuple[str, str]]
_BY_RESET: dict[int, Status] = {
    ErrorCodes.REFUSED_STREAM: Status.UNAVAILABLE,
    ErrorCodes.CANCEL: Status.CANCELLED,
    ErrorCodes.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
}
_BY_HTTP = {
    b"401": Status.UNAUTHENTICATED,
    b"403": Status.PERMISSION_DENIED,
    b"404": Status.UNIMPLEMENTED,
    **dict.fromkeys((b"429", b"502", b"503", b"504"), Status.UNAVAILABLE),
}


class ClientCall:
    """One call: messages for the peer and messages of it."""

    def __init__(self, client: GrpcClient, number: int, message_bytes_max: int) -> None:
        self.messages = Messages("answer", message_bytes_max)
        self.headers: dict[bytes, bytes] = {}
        self.has_ended = False
        self.reset: int | None = None  # HTTP/2's code, if the peer has given the call up
        self._client = client
        self._number = number

    async def send(self, message: bytes, *, is_last: bool = False) -> None:
        """Raises CallError. If the call has ended already, `receive` tells how."""
        await self._client.send(self._number, self, framed(message), is_last=is_last)

    async def receive(self) -> bytes | None:
        """Returns the next message; None after the last one. Raises CallError if the call has failed."""
        while (message := self.messages.next()) is None:
            if self.has_ended:
                self._check()
                return None
            await self._client.until_heard(self._number, self)
        return message

    def take_headers(self, event: ResponseReceived | TrailersReceived) -> None:
        self.headers |= {bytes(name): bytes(value) for name, value in event.headers}

    def _check(self) -> None:
        status, text = self._status()
        if status is not Status.OK:
            raise CallError(status, text)
        self.messages.check_end()

    def _status(self) -> tuple[Status, str]:
        told = self.headers.get(b"grpc-status", b"")
        if (status := status_of(told)) is not None:
            return status, percent_decoded(self.headers.get(b"grpc-message", b""))
        if self.reset is not None:
            return _BY_RESET.get(self.reset, Status.INTERNAL), f"it was reset with HTTP/2's code {self.reset}"
        http = self.headers.get(b":status", b"")
        if http not in (b"200", b""):
            return _BY_HTTP.get(http, Status.UNKNOWN), f"the answer has HTTP's status {percent_decoded(http)}"
        return Status.UNKNOWN, "the answer has no status"


class GrpcClient:
    """Makes the calls of one connection. `name` is the peer's in errors, `authority` what it is told."""

    def __init__(
        self,
        stream: Stream,
        *,
        name: str,
        message_bytes_max: int,
        authority: str = "localhost",
        scheme: str = "http",
        pings: bool = True,
    ) -> None:
        """`pings`: a silent peer must answer a PING. By default, gRPC servers end a connection that sends a few."""
        self.name = name
        self.lost = ""  # why it can't be used any more
        self.has_greeted = False
        self._heard_at_s = anyio.current_time()
        self._stream = stream
        self._message_bytes_max = message_bytes_max
        self._pings = pings
        self._headers = ((":method", "POST"), (":scheme", scheme), (":authority", authority))
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._h2.initiate_connection()
        self._calls: dict[int, ClientCall] = {}
        self._overhead_bytes = 0
        self._awaits = False  # something was sent since the peer was heard
        self._pinged_at_s: float | None = None
        self._is_reading = self._is_writing = False
        self._reading, self._writing = anyio.CancelScope(), anyio.CancelScope()
        self._changed = anyio.Event()

    async def unary(self, method: str, request: bytes, *, timeout_s: float | None, metadata: Metadata = ()) -> bytes:
        """Returns the one answer. `timeout_s` None: the caller keeps the deadline. Raises CallError."""
        try:
            with anyio.fail_after(timeout_s), self.call(method, timeout_s=timeout_s, metadata=metadata) as call:
                await call.send(request, is_last=True)
                answer = await call.receive()
                if answer is None or await call.receive() is not None:
                    raise CallError(Status.UNIMPLEMENTED, "there is not one answer")
                return answer
        except TimeoutError:
            raise CallError(Status.DEADLINE_EXCEEDED, f"{self.name} has not answered within {timeout_s:g} s") from None

    @contextmanager
    def call(self, method: str, *, timeout_s: float | None = None, metadata: Metadata = ()) -> Generator[ClientCall]:
        """Begins a call, and gives it up at the end of the block. The caller keeps the deadline. Raises CallError."""
        if self.lost:
            raise CallError(Status.UNAVAILABLE, self.lost)
        headers = [*self._headers, (":path", method), ("te", "trailers"), ("content-type", "application/grpc")]
        if timeout_s is not None:
            headers.append(("grpc-timeout", f"{max(1, int(timeout_s * 1000))}m"))
        try:
            number = self._h2.get_next_available_stream_id()
            self._h2.send_headers(number, [*headers, *metadata])
        except H2Error as error:
            self._lose(f"{self.name} takes no call ({type(error).__name__})")
            raise CallError(Status.UNAVAILABLE, self.lost) from error
        if not self._calls and not self._awaits:
            self._heard_at_s, self._pinged_at_s = anyio.current_time(), None  # Nobody has listened until now.
        call = self._calls[number] = ClientCall(self, number, self._message_bytes_max)
        try:
            yield call
        finally:
            del self._calls[number]
            with contextlib.suppress(H2Error):  # The connection may have ended.
                self._acknowledge(number, call)
                if not call.has_ended:
                    self._h2.reset_stream(number, ErrorCodes.CANCEL)  # It leaves with the next message.

    async def until_greeted(self) -> None:
        """Returns once the peer has spoken HTTP/2. Raises CallError."""
        await self._until(lambda: self.has_greeted)

    async def end(self) -> None:
        """Gives all calls up. After that, the stream may be closed: nobody waits for it."""
        self._lose(f"the connection to {self.name} is not used any more")
        while self._is_reading or self._is_writing:
            await self._changed.wait()

    # --- for the calls ---------------------------------------------------------------------------------------------

    async def send(self, number: int, call: ClientCall, data: bytes, *, is_last: bool) -> None:
        rest = memoryview(data)
        while rest and not call.has_ended:
            try:
                unsent = send_part(self._h2, number, rest)
                if not unsent and is_last:
                    self._h2.end_stream(number)
            except H2Error as error:
                raise CallError(Status.UNAVAILABLE, f"{self.name} takes no message ({type(error).__name__})") from error
            if len(unsent) == len(rest):
                await self._until(lambda: call.has_ended or self._h2.local_flow_control_window(number) > 0)
            rest = unsent
        await self._flush()

    async def until_heard(self, number: int, call: ClientCall) -> None:
        """Returns once more of the call has arrived, or its end."""
        self._acknowledge(number, call)
        await self._until(lambda: call.has_ended or call.messages.unacknowledged_bytes > 0)

    def _acknowledge(self, number: int, call: ClientCall) -> None:
        count, call.messages.unacknowledged_bytes = call.messages.unacknowledged_bytes, 0
        if count and not self.lost:
            self._h2.acknowledge_received_data(count, number)

    # --- the connection --------------------------------------------------------------------------------------------

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Returns once it is so. Reads meanwhile, or waits for the call that does."""
        while not is_so():
            if self.lost:
                raise CallError(Status.UNAVAILABLE, self.lost)
            if self._is_reading:
                await self._changed.wait()
                continue
            self._is_reading = True
            try:
                await self._flush()
                if not self.lost:
                    await self._read()
            finally:
                self._is_reading = False
                self._tell_change()

    async def _read(self) -> None:
        """Reads once. After a long silence, asks whether the peer is there."""
        until_s = math.inf
        if self._pings:
            until_s = self._heard_at_s + PING_AFTER_S if self._pinged_at_s is None else self._pinged_at_s + PONG_S
        data = None
        with anyio.CancelScope(deadline=max(until_s, anyio.current_time() + READ_S)) as self._reading:
            data = await self._stream.receive()
        if self.lost:
            return
        if data is None and self._pinged_at_s is not None:
            self._lose(f"{self.name} has been silent for {anyio.current_time() - self._heard_at_s:.1f} s")
        elif data is None:
            self._pinged_at_s = anyio.current_time()
            self._h2.ping(bytes(8))
        elif not data:
            self._lose(f"{self.name} has closed the connection")
        else:
            self._heard_at_s, self._pinged_at_s, self._awaits = anyio.current_time(), None, False
            self._take_data(data)

    def _take_data(self, data: bytes) -> None:
        self._overhead_bytes += len(data)
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
        except (H2Error, ValueError) as error:  # h2 lets some of Python's own through
            self._lose(f"{self.name} does not speak gRPC ({type(error).__name__})")
        if self._overhead_bytes > OVERHEAD_BYTES_MAX:
            self._lose(f"{self.name} sends something that is not an answer")

    def _take(self, event: Event) -> None:
        match event:
            case RemoteSettingsChanged():
                self.has_greeted = True
            case PingAckReceived():
                self._overhead_bytes = 0
            case ConnectionTerminated():
                self._lose(f"{self.name} has ended the connection")
            case ResponseReceived() | TrailersReceived():
                if (call := self._calls.get(event.stream_id or 0)) is not None:
                    self._overhead_bytes = 0
                    call.take_headers(event)
            case DataReceived():
                self._take_part(event)
            case StreamEnded() | StreamReset():
                if (call := self._calls.get(event.stream_id or 0)) is not None and not call.has_ended:
                    call.has_ended = True
                    call.reset = event.error_code if isinstance(event, StreamReset) else None
            case _:
                pass

    def _take_part(self, event: DataReceived) -> None:
        call = self._calls.get(event.stream_id or 0)
        if call is None:
            if event.flow_controlled_length:
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id or 0)
            return
        call.messages.take(event.data or b"", event.flow_controlled_length or 0)
        if event.data:
            self._overhead_bytes = 0

    async def _flush(self) -> None:
        """Sends what waits. If another send is in progress, that one sends this, too."""
        if self._is_writing or self.lost:
            return
        self._is_writing = True
        is_whole = False
        try:
            with anyio.CancelScope() as self._writing:
                while data := self._h2.data_to_send():
                    self._awaits = True
                    if not await self._stream.send(data):
                        self._lose(f"{self.name} has closed the connection")
                        break
                is_whole = True
        finally:
            self._is_writing = False
            if not is_whole:  # The peer has read a part of what was to be sent.
                self._lose(f"{self.name} does not read")
            self._tell_change()

    def _lose(self, why: str) -> None:
        """Stops reading and writing for good."""
        self.lost = self.lost or why
        self._reading.cancel()
        self._writing.cancel()
        self._tell_change()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
