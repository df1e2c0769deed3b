"""How do operators and programs ask this supervisor? The gRPC service, its ports and its bounds.

A private supervisor loads this module when it is asked for the first time.
"""

from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path

import anyio
import msgspec
from anyio.abc import ByteStream, TaskStatus
from anyio.streams.tls import TLSListener
from holdfast_wire import regular_file

from supervisor.edges.machine.processes.socket_stream import READ_BYTES_MAX, SocketStream
from supervisor.edges.operators import grpc_discovery
from supervisor.edges.operators.control_encoding import REQUEST_BYTES_MAX
from supervisor.edges.operators.control_service import ControlService
from supervisor.edges.rpc.grpc_server import GrpcServer
from supervisor.edges.rpc.message_framing import Stream
from supervisor.errors import ConfigurationError
from supervisor.ports.job_requests import JobHistory, JobRequests

CONCURRENT_CALLS_MAX = 256  # for all clients together; beyond it RESOURCE_EXHAUSTED
TCP_CONNECTIONS_MAX = 256
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
        open_now = 0

        async def meet(stream: ByteStream) -> None:
            nonlocal open_now
            open_now += 1
            try:
                async with stream:
                    if open_now <= TCP_CONNECTIONS_MAX:
                        await self._serve(_EncryptedStream(stream), None)
            except OSError as error:
                _log.debug("a client of %s has gone: %s", listener.address, error)
            finally:
                open_now -= 1

        async with opened:
            task_status.started()
            try:
                await _Listener(opened, context, False, HANDSHAKE_TIMEOUT_S).serve(meet)
            finally:
                self.end()


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


class _Listener(TLSListener):
    @staticmethod
    async def handle_handshake_error(exc: BaseException, stream: anyio.abc.AnyByteStream) -> None:
        """Closes the connection of a client without a certificate, and logs nothing that a scanner could repeat."""
        await anyio.aclose_forcefully(stream)
        if not isinstance(exc, Exception):
            raise exc
        _log.debug("a client has not shown a certificate: %s", exc)


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
