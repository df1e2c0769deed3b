"""At which addresses may a monitoring system ask, and what is it answered? HTTP by h11, GET alone."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio
import h11
from anyio.abc import ByteStream, Listener, SocketStream, TaskStatus
from anyio.streams.stapled import MultiListener

from supervisor.errors import ConfigurationError

CONNECTIONS_MAX = 32
IDLE_TIMEOUT_S = 30.0
READ_BYTES = 16_384

_log = logging.getLogger("holdfast")


class Answer:
    """What is sent for one request."""

    def __init__(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.status, self.body, self.content_type = status, body, content_type


Routes = Mapping[str, Callable[[], Awaitable[Answer]]]  # path → who answers


async def listen(address: tuple[str, int] | None, path: Path) -> MultiListener[SocketStream]:
    """Listens at TCP `address`, if there is one, and at the Unix socket `path`. Raises ConfigurationError."""
    listeners: list[Listener[SocketStream]] = []
    if address is not None:
        host, port = address
        try:
            opened = await anyio.create_tcp_listener(local_host=host, local_port=port)
        except OSError as error:
            raise ConfigurationError(
                f"cannot serve metrics at {host}:{port}: {error.strerror or error}; name another address with --metrics"
            ) from error
        listeners += opened.listeners
    listeners.append(await anyio.create_unix_listener(path, mode=0o600))
    return MultiListener(listeners)


async def serve(
    listener: MultiListener[SocketStream], routes: Routes, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Answers until cancelled. A client that is slow, silent or wrong costs its own connection alone."""
    open_now = 0

    async def meet(stream: ByteStream) -> None:
        nonlocal open_now
        if open_now == CONNECTIONS_MAX:
            await stream.aclose()
            return
        open_now += 1
        async with stream:
            try:
                await _converse(stream, routes)
            except (h11.RemoteProtocolError, anyio.BrokenResourceError, TimeoutError):
                return
            finally:
                open_now -= 1

    async with listener:
        task_status.started()
        await listener.serve(meet)


async def _converse(stream: ByteStream, routes: Routes) -> None:
    """One request after the other, as long as the client likes."""
    connection = h11.Connection(h11.SERVER)
    while True:
        with anyio.fail_after(IDLE_TIMEOUT_S):
            request = await _request(connection, stream)
            if request is None:
                return
            answer = await _answer(request, routes)
            await stream.send(_encoded(connection, request, answer))
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return
        connection.start_next_cycle()


async def _request(connection: h11.Connection, stream: ByteStream) -> h11.Request | None:
    """The next one, its body read and dropped; None where the client has gone."""
    request: h11.Request | None = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            try:
                connection.receive_data(await stream.receive(READ_BYTES))
            except anyio.EndOfStream:
                connection.receive_data(b"")
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif isinstance(event, h11.ConnectionClosed):
            return None


async def _answer(request: h11.Request, routes: Routes) -> Answer:
    path = request.target.decode("ascii", "replace").partition("?")[0]
    found = routes.get(path)
    if found is None:
        return Answer(404, f"there is no {path}; there are {', '.join(routes)}\n".encode())
    if request.method not in (b"GET", b"HEAD"):
        return Answer(405, b"only GET is answered\n")
    try:
        return await found()
    except Exception:  # noqa: BLE001 - the bulkhead: what monitoring asks must not end the supervisor
        _log.warning("cannot answer %s", path, exc_info=True)
        return Answer(500, b"see the supervisor's log\n")


def _encoded(connection: h11.Connection, request: h11.Request, answer: Answer) -> bytes:
    headers = [
        ("content-type", answer.content_type),
        ("content-length", str(len(answer.body))),
        ("cache-control", "no-store"),
    ]
    parts = [connection.send(h11.Response(status_code=answer.status, headers=headers))]
    if request.method != b"HEAD":
        parts.append(connection.send(h11.Data(data=answer.body)))
    parts.append(connection.send(h11.EndOfMessage()))
    return b"".join(part for part in parts if part)
