"""How are the gRPC calls of one connection answered without gRPC's library?

That library starts threads when it likes and aborts the process that can't start one, so a worker that has filled the
limit on processes would end the supervisor with the first `holdfast status`. h2 speaks HTTP/2 in the event loop's
thread: it needs no thread, no further descriptor, and whatever it lacks is an exception.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from supervisor.edges.rpc.message_framing import Messages, Stream, framed, send_part
from supervisor.edges.rpc.statuses import CallError, Status, percent_encoded

STREAMS_PER_CONNECTION_MAX = 64
UNSENT_BYTES_MAX = 256 * 1024  # a client that does not read holds its calls up at this
STOP_GRACE_S = 0.5  # for calls in flight when the service ends
LAST_ANSWERS_S = 2.0  # at the end, what was answered is still sent for this long

_log = logging.getLogger("holdfast.rpc")


class Places:
    """The number of calls that are in progress on all connections, and its limit."""

    def __init__(self, calls_max: int) -> None:
        self.calls_max = calls_max
        self.taken = 0


class Call:
    """One call: messages of the client and messages for it."""

    def __init__(self, connection: GrpcConnection, number: int, message_bytes_max: int) -> None:
        self.client = connection.client
        self.scope = anyio.CancelScope()
        self.messages = Messages("request", message_bytes_max)
        self.has_all = False  # the client has sent all its messages
        self.has_begun = False  # an answer was begun
        self._connection = connection
        self._number = number
        self._arrived = anyio.Event()

    async def receive(self) -> bytes | None:
        """Returns the next message; None after the last one. Raises CallError if it can't be read."""
        while (message := self.messages.next()) is None:
            if self.has_all:
                self.messages.check_end()
                return None
            self._connection.acknowledge(self._number, self)  # The client may send as much again.
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return message

    async def send(self, message: bytes) -> None:
        await self._connection.send(self._number, self, framed(message))

    def take(self, data: bytes, flow_bytes: int) -> None:
        self.messages.take(data, flow_bytes)
        self._arrived.set()

    def take_end(self) -> None:
        self.has_all = True
        self._arrived.set()


Handler = Callable[[Call], Awaitable[None]]  # may raise CallError


def unless_cancelled(handler: Handler) -> Handler:
    """Returns a handler of only those calls that their client has not cancelled before they were read."""

    async def handle(call: Call) -> None:
        if not call.scope.cancel_called:
            await handler(call)

    return handle


class GrpcConnection:
    """Answers the calls of one connection with `handlers`, by path; those of other paths with `otherwise`, if given.

    `client`: its socket, if it is on this node.
    """

    def __init__(
        self,
        stream: Stream,
        handlers: Mapping[bytes, Handler],
        places: Places,
        *,
        message_bytes_max: int,
        streams_max: int = STREAMS_PER_CONNECTION_MAX,
        client: socket.socket | None = None,
        otherwise: Handler | None = None,
    ) -> None:
        self.client = client
        self._stream = stream
        self._handlers = handlers
        self._otherwise = otherwise
        self._places = places
        self._message_bytes_max = message_bytes_max
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self._h2.local_settings = Settings(
            client=False, initial_values={SettingCodes.MAX_CONCURRENT_STREAMS: streams_max}
        )
        self._calls: dict[int, Call] = {}
        self._unsent = bytearray()
        self._wakeup = anyio.Event()  # there is something to send
        self._changed = anyio.Event()  # there is room to send, or a call has ended
        self._is_writing = False
        self._is_ending = False
        self._tasks: TaskGroup | None = None

    async def run(self) -> None:
        """Returns once the client has left, or after `end`."""
        if self._is_ending:
            return
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self._h2.initiate_connection()
            self._flush()
            tasks.start_soon(self._write, tasks.cancel_scope)
            await self._read(tasks)
            tasks.cancel_scope.cancel()

    def end(self) -> None:
        """Ends the connection: calls in flight have a moment, and what was answered is still sent."""
        if not self._is_ending:
            self._is_ending = True
            if self._tasks is not None:
                self._tasks.start_soon(self._end, self._tasks)

    async def _end(self, tasks: TaskGroup) -> None:
        with anyio.move_on_after(STOP_GRACE_S):
            while self._calls:
                await self._change()
        self._h2.close_connection()
        self._flush()
        with anyio.move_on_after(LAST_ANSWERS_S):
            while self._unsent or self._is_writing:
                await self._change()
        tasks.cancel_scope.cancel()

    # --- what arrives ----------------------------------------------------------------------------------------------

    async def _read(self, tasks: TaskGroup) -> None:
        while data := await self._stream.receive():
            try:
                for event in self._h2.receive_data(data):
                    if isinstance(event, ConnectionTerminated):
                        return
                    self._take(event, tasks)
            except H2Error as error:
                _log.debug("a client does not speak HTTP/2: %s", error)
                return
            self._flush()
            while len(self._unsent) > UNSENT_BYTES_MAX:  # A client that does not read is not read.
                await self._change()

    def _take(self, event: Event, tasks: TaskGroup) -> None:
        match event:
            case RequestReceived():
                self._begin(event, tasks)
            case DataReceived():
                call = self._calls.get(event.stream_id)
                if call is not None:
                    call.take(event.data, event.flow_controlled_length)
                elif event.flow_controlled_length:
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded():
                if (call := self._calls.get(event.stream_id)) is not None:
                    call.take_end()
            case StreamReset():
                if (call := self._calls.get(event.stream_id)) is not None:
                    call.scope.cancel()
            case WindowUpdated() | RemoteSettingsChanged():
                self._tell_change()
            case _:
                pass

    def acknowledge(self, number: int, call: Call) -> None:
        """Lets the client send as much as `call` has taken."""
        count, call.messages.unacknowledged_bytes = call.messages.unacknowledged_bytes, 0
        if count:
            with contextlib.suppress(H2Error):  # The client may have left.
                self._h2.acknowledge_received_data(count, number)
            self._flush()

    # --- calls -----------------------------------------------------------------------------------------------------

    def _begin(self, event: RequestReceived, tasks: TaskGroup) -> None:
        number = event.stream_id
        call = Call(self, number, self._message_bytes_max)
        path = next((value for name, value in event.headers if name == b":path"), b"")
        handler = self._handlers.get(bytes(path), self._otherwise)
        if handler is None:
            self._finish(number, call, CallError(Status.UNIMPLEMENTED, "cannot answer: there is no such method"))
        elif self._is_ending:
            self._finish(number, call, CallError(Status.UNAVAILABLE, "cannot answer: the service ends"))
        elif self._places.taken >= self._places.calls_max:
            refusal = CallError(
                Status.RESOURCE_EXHAUSTED, f"cannot answer: {self._places.calls_max} calls are in progress already"
            )
            self._finish(number, call, refusal)
        else:
            self._calls[number] = call
            self._places.taken += 1
            tasks.start_soon(self._answer, number, call, handler)

    async def _answer(self, number: int, call: Call, handler: Handler) -> None:
        refusal = None
        try:
            with call.scope:
                await handler(call)
        except CallError as error:
            refusal = error
        except Exception as error:  # noqa: BLE001 - a defect of ours costs this call its answer, and nobody else anything
            _log.error("cannot answer a call: a fault of the service", exc_info=error)
            refusal = CallError(Status.INTERNAL, "cannot answer: a fault of the service; see its log")
        finally:
            del self._calls[number]
            self._places.taken -= 1
        if not call.scope.cancel_called:
            self._finish(number, call, refusal)
        self.acknowledge(number, call)
        self._tell_change()

    def _finish(self, number: int, call: Call, refusal: CallError | None) -> None:
        headers = [] if call.has_begun else _HEADERS
        headers = [*headers, (b"grpc-status", b"%d" % (refusal.status if refusal else Status.OK))]
        if refusal is not None:
            headers.append((b"grpc-message", percent_encoded(str(refusal))))
            if refusal.details:
                headers.append((b"grpc-status-details-bin", base64.b64encode(refusal.details).rstrip(b"=")))
        with contextlib.suppress(H2Error):  # The client may have left, or may have sent all.
            self._h2.send_headers(number, headers, end_stream=True)
            if not call.has_all:
                self._h2.reset_stream(number, ErrorCodes.NO_ERROR)
        self._flush()

    # --- what is sent ----------------------------------------------------------------------------------------------

    async def send(self, number: int, call: Call, data: bytes) -> None:
        """Sends one message of a call, as far as the client and its window permit. Cancels the call if it has left."""
        try:
            await self._send(number, call, data)
        except H2Error:
            call.scope.cancel()
            await anyio.lowlevel.checkpoint()

    async def _send(self, number: int, call: Call, data: bytes) -> None:
        if not call.has_begun:
            call.has_begun = True
            self._h2.send_headers(number, _HEADERS)
        rest = memoryview(data)
        while rest:
            if len(self._unsent) <= UNSENT_BYTES_MAX and len(unsent := send_part(self._h2, number, rest)) < len(rest):
                rest = unsent
                self._flush()
            else:
                self._flush()
                await self._change()

    def _flush(self) -> None:
        self._unsent += self._h2.data_to_send()
        if self._unsent:
            self._wakeup.set()

    async def _write(self, connection: anyio.CancelScope) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup = anyio.Event()
            while self._unsent:
                data, self._unsent = bytes(self._unsent), bytearray()
                self._is_writing = True
                self._tell_change()
                if not await self._stream.send(data):
                    connection.cancel()
                    return
            self._is_writing = False
            self._tell_change()

    async def _change(self) -> None:
        await self._changed.wait()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


_HEADERS = [(b":status", b"200"), (b"content-type", b"application/grpc")]
