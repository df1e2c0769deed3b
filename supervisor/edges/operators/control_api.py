"""How do operators and programs ask this supervisor? The gRPC service, its ports and its bounds.

A private supervisor loads this module when it is asked for the first time.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
from anyio.abc import ByteStream, SocketAttribute, TaskGroup, TaskStatus
from anyio.streams.tls import TLSStream
from holdfast_wire import regular_file

from supervisor.edges.machine.own_process import accepting
from supervisor.edges.machine.processes.socket_stream import READ_BYTES_MAX, SocketStream
from supervisor.edges.operators import grpc_discovery
from supervisor.edges.operators.control_encoding import REQUEST_BYTES_MAX
from supervisor.edges.operators.control_gate import NODE_CONNECTIONS_MAX
from supervisor.edges.operators.control_service import ControlService
from supervisor.edges.operators.http_connection_limit import Place, Places
from supervisor.edges.rpc.grpc_server import GrpcServer
from supervisor.edges.rpc.message_framing import Stream
from supervisor.errors import ConfigurationError
from supervisor.ports.job_requests import JobHistory, JobRequests

# For all clients together, beyond it RESOURCE_EXHAUSTED: each `holdfast run` holds two, its events and its output.
CONCURRENT_CALLS_MAX = 2 * NODE_CONNECTIONS_MAX + 256
TCP_CONNECTIONS_MAX = 256
HANDSHAKES_MAX = 256  # besides them: connections that have not shown a certificate yet, shared by source
TCP_BACKLOG = 256
HANDSHAKE_TIMEOUT_S = 10.0

_log = logging.getLogger("holdfast.control")


class SecureListener(msgspec.Struct, frozen=True):
    """A TCP port with mutual TLS. Without TLS there is no TCP port."""

    address: str  # host:port
    certificate: Path
    key: Path
    client_authority: Path


def secure_listener(
    address: str | None, *, certificate: str | None, key: str | None, client_authority: str | None
) -> SecureListener | None:
    """Builds it from --listen, --tls-cert, --tls-key and --tls-ca. Raises ConfigurationError if only some are set."""
    given = {"--tls-cert": certificate, "--tls-key": key, "--tls-ca": client_authority}
    missing = [flag for flag, value in given.items() if not value]
    if not address:
        if len(missing) < len(given):
            raise ConfigurationError("cannot use --tls-…: there is no address to protect; add --listen HOST:PORT")
        return None
    if missing or not (certificate and key and client_authority):
        raise ConfigurationError(
            f"cannot listen on {address}: without mutual TLS, anybody who reaches it could stop jobs; "
            f"give {', '.join(missing)}"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ConfigurationError(f"cannot listen on {address}: it is not HOST:PORT; write one such as 0.0.0.0:9443")
    return SecureListener(address, Path(certificate), Path(key), Path(client_authority))


class ControlApi:
    """Answers the clients of one supervisor."""

    def __init__(self, job_service: JobRequests, history: JobHistory, *, for_users: bool = False) -> None:
        """`for_users`: one of several users' supervisors, whose jobs get the limits of the submitting process."""
        service = ControlService(job_service, history, for_users=for_users)
        self._server = GrpcServer(
            {**service.handlers(), **grpc_discovery.handlers()},
            calls_max=CONCURRENT_CALLS_MAX,
            message_bytes_max=REQUEST_BYTES_MAX,
        )

    async def serve(self, client: socket.socket) -> None:
        """Answers a client on this node until it leaves, or until a moment after `end`. Is not cancelled before."""
        await self._serve(SocketStream(client), client)

    async def _serve(self, stream: Stream, client: socket.socket | None) -> None:
        with anyio.CancelScope(shield=True):  # half an answer is worse than half a second
            await self._server.serve(stream, client)

    def end(self) -> None:
        """Ends all connections: calls in flight have a moment."""
        self._server.end()

    async def serve_tcp(
        self, listener: SecureListener, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves until cancelled; `started` once it listens. Raises ConfigurationError if it can't."""
        context, host, port = _context(listener), *_host_and_port(listener.address)
        try:
            opened = await anyio.create_tcp_listener(local_host=host, local_port=port, backlog=TCP_BACKLOG)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {listener.address}: {error.strerror or error}; check --listen"
            ) from error
        connections = _TcpConnections(listener.address, context, self._serve)
        async with opened, anyio.create_task_group() as tasks:
            for each in opened.listeners:
                tasks.start_soon(connections.accept, each.extra(SocketAttribute.raw_socket), tasks)
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                self.end()


class _TcpConnections:
    """The connections of a TCP port. Those that have not shown a certificate are bounded apart from the others."""

    def __init__(self, address: str, context: ssl.SSLContext, serve: Callable[[Stream, None], Awaitable[None]]) -> None:
        self._address = address
        self._context = context
        self._serve = serve
        self._strangers = Places(HANDSHAKES_MAX)
        self._open_now = 0  # beyond the handshake
        self._shortage_told = False

    async def accept(self, listener: socket.socket, tasks: TaskGroup) -> None:
        """Accepts until cancelled."""
        async for client in accepting.connections(listener, self._tell_shortage):
            scope = anyio.CancelScope()
            try:
                source = self._strangers.source(client.getpeername(), client.getsockname())
            except OSError:  # It is gone already.
                client.close()
                continue
            if (place := self._strangers.enter(source, scope.cancel)) is None:
                client.close()
            else:
                tasks.start_soon(self._meet, client, place, scope)

    async def _meet(self, client: socket.socket, place: Place, scope: anyio.CancelScope) -> None:
        try:
            with client:
                try:
                    stream = await self._encrypted(client, scope)
                finally:
                    self._strangers.leave(place)
                if stream is not None and self._open_now < TCP_CONNECTIONS_MAX:
                    await self._answer(stream)
        except Exception as error:  # noqa: BLE001 - whatever a client does to its connection, the jobs must not end
            _log.debug("a client of %s has gone: %s", self._address, error)

    async def _encrypted(self, client: socket.socket, scope: anyio.CancelScope) -> ByteStream | None:
        """Returns None if no certificate is shown in time, or another connection has got the place."""
        with scope, anyio.move_on_after(HANDSHAKE_TIMEOUT_S):
            return await TLSStream.wrap(
                _Transport(client), server_side=True, ssl_context=self._context, standard_compatible=False
            )
        return None

    async def _answer(self, stream: ByteStream) -> None:
        self._open_now += 1
        try:
            await self._serve(_EncryptedStream(stream), None)
        finally:
            self._open_now -= 1

    def _tell_shortage(self, error: OSError) -> None:
        level = logging.DEBUG if self._shortage_told else logging.WARNING
        self._shortage_told = True
        _log.log(level, "cannot answer on %s for now: %s; raise the limit of open files", self._address, error)


class _Transport(ByteStream):
    """A socket that does not block, as TLSStream takes it. The caller closes the socket."""

    def __init__(self, client: socket.socket) -> None:
        self._stream = SocketStream(client)

    async def receive(self, max_bytes: int = READ_BYTES_MAX) -> bytes:
        if data := await self._stream.receive():
            return data
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        if not await self._stream.send(item):
            raise anyio.BrokenResourceError

    async def send_eof(self) -> None:
        """Does nothing: TLS does not end one direction alone."""

    async def aclose(self) -> None:
        """Closes nothing; see above."""


class _EncryptedStream:
    """See SocketStream."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    async def receive(self) -> bytes:
        try:
            return await self._stream.receive(READ_BYTES_MAX)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return b""

    async def send(self, data: bytes) -> bool:
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            return False
        return True


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _context(listener: SecureListener) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    try:
        for path in (listener.certificate, listener.key, listener.client_authority):
            regular_file.opened(path, follows=True).close()  # not a pipe: OpenSSL would wait for its writer
        context.load_cert_chain(listener.certificate, listener.key)
        context.load_verify_locations(listener.client_authority)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot listen on {listener.address}: {error}; check --listen and --tls-…") from error
    return context
