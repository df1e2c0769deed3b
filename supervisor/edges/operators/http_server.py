"""How is a small HTTP interface served: at which addresses, and which function answers which path? Uses h11."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs

import anyio
import h11
import msgspec
from anyio.abc import ByteStream, Listener, SocketAttribute, SocketStream, TaskStatus
from anyio.streams.stapled import MultiListener

from supervisor.edges.machine.processes.tcp_user import Address, stranger_at
from supervisor.edges.operators.http_places import Place, Places, Source, as_it_is
from supervisor.errors import ConfigurationError

CONNECTIONS_MAX = 32
IDLE_TIMEOUT_S = 30.0
READ_BYTES = 16_384
BODY_BYTES_MAX = 65_536

_log = logging.getLogger("holdfast")


class Answer:
    """The answer to one request."""

    def __init__(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.status, self.body, self.content_type = status, body, content_type


class Request(msgspec.Struct, frozen=True):
    """A request. If a name is repeated in the query, its first value counts; of a header, its last one."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    headers: Mapping[str, str]  # names in small letters


Routes = Mapping[str, Callable[[Request], Awaitable[Answer]]]  # "GET /path" → function that also answers HEAD


async def listen(
    address: tuple[str, int] | None, path: Path | None, *, what: str, flag: str
) -> MultiListener[SocketStream]:
    """Listens at the TCP `address` and the Unix socket `path` that are given. Raises ConfigurationError."""
    listeners: list[Listener[SocketStream]] = []
    if address is not None:
        host, port = address
        try:
            opened = await anyio.create_tcp_listener(local_host=host, local_port=port)
        except OSError as error:
            raise ConfigurationError(
                f"cannot serve {what} at {host}:{port}: {error.strerror or error}; name another address with {flag}"
            ) from error
        listeners += opened.listeners
    if path is not None:
        listeners.append(await anyio.create_unix_listener(path, mode=0o600))
    return MultiListener(listeners)


async def serve(
    listener: MultiListener[SocketStream],
    routes: Routes,
    *,
    only_own_user: bool = False,
    login_of: Callable[[int], int] = as_it_is,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Answers until cancelled. A client that is slow, silent or wrong affects only its own connection.

    With `only_own_user`, which is for loopback addresses, only processes of this process's user, and root's, get what
    they ask for. `login_of`: see Places.
    """
    places = Places(CONNECTIONS_MAX, login_of)

    async def meet(stream: SocketStream) -> None:
        scope = anyio.CancelScope()
        place = places.enter(_source(stream, places), scope.cancel)
        async with stream:  # outside of the scope, so that a connection that ends is closed at once
            if place is None:
                return
            with scope:
                try:
                    refusal = _refusal(stream) if only_own_user else ""
                    await _converse(stream, _refusing(routes, refusal) if refusal else routes, places, place)
                except (anyio.BrokenResourceError, TimeoutError):
                    return
                finally:
                    places.leave(place)

    async with listener:
        task_status.started()
        await listener.serve(meet)


def _source(stream: SocketStream, places: Places) -> Source:
    if stream.extra(SocketAttribute.family) == socket.AF_UNIX:
        return os.geteuid()  # `listen` opens it to nobody else.
    return places.source(*_ends(stream))


def _ends(stream: SocketStream) -> tuple[Address, Address]:
    """Returns the addresses of the client and of this server."""
    ends = [stream.extra(which) for which in (SocketAttribute.remote_address, SocketAttribute.local_address)]
    peer, own = (cast("tuple[str, int]", each) for each in ends)
    return peer, own


def _refusal(stream: SocketStream) -> str:
    """Returns why the client is refused; "" if it is not."""
    try:
        whose = stranger_at(*_ends(stream))
    except OSError as error:
        whose = str(error)
    if not whose:
        return ""
    own = f"uid {os.geteuid()}"
    return (
        f"cannot answer: this is a service for {own}, and this connection belongs to {whose}; start one of your own\n"
    )


def _refusing(routes: Routes, refusal: str) -> Routes:
    async def refuse(request: Request) -> Answer:
        del request
        return Answer(403, refusal.encode())

    return dict.fromkeys(routes, refuse)


async def _converse(stream: ByteStream, routes: Routes, places: Places, place: Place) -> None:
    """Serves one request after another, as long as the client sends them."""
    connection = h11.Connection(h11.SERVER)
    while True:
        with anyio.fail_after(IDLE_TIMEOUT_S):
            try:
                head, body = await _receive(connection, stream)
            except h11.RemoteProtocolError as error:
                if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    refusal = Answer(error.error_status_hint, b"cannot read the request: it is no valid HTTP\n")
                    await stream.send(_encoded(connection, None, refusal))
                return
        if head is None:
            return
        places.answer(place)
        answer = Answer(413, b"the body is too long\n") if body is None else await _answer(_request(head, body), routes)
        places.wait(place)
        with anyio.fail_after(IDLE_TIMEOUT_S):
            await stream.send(_encoded(connection, head, answer))
        if body is None or connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return
        connection.start_next_cycle()


async def _receive(connection: h11.Connection, stream: ByteStream) -> tuple[h11.Request | None, bytes | None]:
    """Returns the next request and its body; no request if the client has gone, no body if it is too long."""
    head: h11.Request | None = None
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            try:
                connection.receive_data(await stream.receive(READ_BYTES))
            except anyio.EndOfStream:
                connection.receive_data(b"")
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                return head, None
        elif isinstance(event, h11.EndOfMessage):
            return head, body
        elif isinstance(event, h11.ConnectionClosed):
            return None, body


def _request(head: h11.Request, body: bytes) -> Request:
    path, _, query = head.target.decode("ascii", "replace").partition("?")
    asked = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
    return Request(head.method.decode("ascii", "replace"), path, asked, body, headers)


async def _answer(request: Request, routes: Routes) -> Answer:
    method = "GET" if request.method == "HEAD" else request.method
    found = routes.get(f"{method} {request.path}")
    if found is None:
        methods = [route.split(" ")[0] for route in routes if route.split(" ")[1] == request.path]
        if methods:
            return Answer(405, f"{request.path} is for {' and '.join(methods)} only\n".encode())
        there = ", ".join(dict.fromkeys(route.split(" ")[1] for route in routes))
        return Answer(404, f"there is no {request.path}; there are {there}\n".encode())
    try:
        return await found(request)
    except Exception:  # noqa: BLE001 - the bulkhead: no request may end the server
        _log.warning("cannot answer %s", request.path, exc_info=True)
        return Answer(500, b"see the server's log\n")


def _encoded(connection: h11.Connection, request: h11.Request | None, answer: Answer) -> bytes:
    headers = [
        ("content-type", answer.content_type),
        ("content-length", str(len(answer.body))),
        ("cache-control", "no-store"),
    ]
    parts = [connection.send(h11.Response(status_code=answer.status, headers=headers))]
    if request is None or request.method != b"HEAD":
        parts.append(connection.send(h11.Data(data=answer.body)))
    parts.append(connection.send(h11.EndOfMessage()))
    return b"".join(part for part in parts if part)
