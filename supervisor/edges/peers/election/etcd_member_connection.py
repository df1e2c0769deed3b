"""How is one member of etcd reached, over TCP and, where it has certificates, TLS?

A connection that is being made outlives the call that began it, and the next call goes on with it. So a slow member is
reached in the end, however short the deadlines of calls are. But it does not outlive CONNECT_S: the kernel repeats lost
packets ever more rarely, and a host that comes back would be reached a minute later.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl

import anyio
import msgspec

from supervisor.config.launch_values import join_endpoint
from supervisor.edges.machine.processes.socket_stream import READ_BYTES_MAX, SocketStream
from supervisor.edges.peers.transport.cluster_connect import reason_of
from supervisor.edges.peers.transport.name_lookup import Found
from supervisor.edges.rpc.grpc_client import GrpcClient
from supervisor.edges.rpc.statuses import CallError, Status

ANSWER_BYTES_MAX = 4 * 1024 * 1024
CONNECT_S = 5.0  # for TCP and TLS; then a call begins a new connection


class Endpoint(msgspec.Struct, frozen=True):
    host: str
    port: int


def endpoint_of(text: str) -> Endpoint:
    """Reads HOST:PORT or [ADDRESS]:PORT. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise ValueError(f"{text} is not HOST:PORT")
    return Endpoint(host, int(port))


class Member:
    """One address of etcd, and the connection to it if there is one."""

    def __init__(self, endpoint: Endpoint, found: Found, tls: ssl.SSLContext | None) -> None:
        self.name = join_endpoint(endpoint.host, endpoint.port)
        self.endpoint = endpoint
        self.found = found
        self.error: OSError | None = None  # why the last attempt to connect failed, if it has
        self._tls = tls
        self._connecting = anyio.Lock()
        self._attempt = anyio.CancelScope()
        self._is_dropped = False
        self._stream: MemberStream | None = None
        self._client: GrpcClient | None = None

    @property
    def ready(self) -> GrpcClient | None:
        """Returns the client if the member has answered and the connection has not ended, as far as is known."""
        client = self._client
        return client if client is not None and client.has_greeted and not client.lost else None

    async def connected(self) -> GrpcClient:
        """Returns a client once the member has answered. Raises CallError. Call it again if it was cancelled."""
        async with self._connecting:
            if self._client is not None and self._client.lost:
                await self._end()
            if self._client is None and not self._is_dropped:
                with anyio.CancelScope() as self._attempt:
                    self._client = await self._connect()
            client, stream = self._client, self._stream
        if client is None:
            raise CallError(Status.UNAVAILABLE, f"{self.name} is not a member any more")
        try:
            await client.until_greeted()
        except CallError as error:
            if stream is None or not stream.refusal:
                raise
            raise CallError(Status.UNAVAILABLE, f"{error}: it does not trust this node: {stream.refusal}") from error
        return client

    async def _connect(self) -> GrpcClient:
        if self._stream is not None and anyio.current_time() > self._stream.begun_s + CONNECT_S:
            self.close()
        self.error = None
        try:
            self._stream = self._stream or MemberStream(self.found, self.endpoint.host, self._tls)
            await self._stream.connect()
        except OSError as error:
            self.close()
            self.error = error
            raise CallError(Status.UNAVAILABLE, f"cannot reach {self.name}: {_reason(error)}") from error
        scheme = "https" if self._tls is not None else "http"
        return GrpcClient(
            self._stream, name=self.name, authority=self.name, scheme=scheme, message_bytes_max=ANSWER_BYTES_MAX
        )

    async def drop(self) -> None:
        """Ends the connection for good, also one that is being made; calls that are in progress fail."""
        self._is_dropped = True
        self._attempt.cancel()
        async with self._connecting:
            await self._end()

    async def _end(self) -> None:
        if self._client is not None:
            await self._client.end()
        self.close()

    def close(self) -> None:
        """Closes the connection. Nobody may use it."""
        if self._stream is not None:
            self._stream.close()
        self._stream = self._client = None


class MemberStream:
    """The bytes of a connection; see message_framing.Stream."""

    def __init__(self, found: Found, host: str, tls: ssl.SSLContext | None) -> None:
        """Raises OSError."""
        self.begun_s = anyio.current_time()
        family, kind, protocol, _, self._address = found
        self._socket = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        self._wire = SocketStream(self._socket)
        self._has_begun = self._has_reached = self._is_sending = False
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._arrived, self._leaving, server_hostname=host) if tls is not None else None
        self._is_trusted = tls is None
        self.refusal = ""  # TLS's reason of the member to end the connection

    async def connect(self) -> None:
        """Raises OSError; a certificate that is not trusted is one, too."""
        if not self._has_begun:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _check(self._socket.connect_ex(self._address))
            self._has_begun = True
        if not self._has_reached:
            await anyio.wait_writable(self._socket)
            _check(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            self._has_reached = True
        while self._tls is not None and not self._is_trusted:
            try:
                self._tls.do_handshake()
                self._is_trusted = True
            except ssl.SSLWantReadError:
                if not await self._send_leaving() or not await self._take_arrived():
                    raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None
        await self._send_leaving()

    async def receive(self) -> bytes:
        """Returns what has arrived; b"" once the member has ended or lost the connection."""
        if self._tls is None:
            return await self._wire.receive()
        while True:
            try:
                return self._tls.read(READ_BYTES_MAX)
            except ssl.SSLWantReadError:
                if not await self._send_leaving() or not await self._take_arrived():
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            except ssl.SSLError as error:
                self.refusal = str(error)
                return b""

    async def send(self, data: bytes) -> bool:
        """Returns False if the member can't be reached any more."""
        if self._tls is None:
            return await self._wire.send(data)
        try:
            self._tls.write(data)
        except ssl.SSLError:
            return False
        return await self._send_leaving()

    async def _take_arrived(self) -> bool:
        data = await self._wire.receive()
        self._arrived.write(data)
        return bool(data)

    async def _send_leaving(self) -> bool:
        """Sends TLS records. If another send is in progress, that one sends these, too."""
        if self._is_sending:
            return True
        self._is_sending = True
        try:
            while data := self._leaving.read():
                if not await self._wire.send(data):
                    return False
        finally:
            self._is_sending = False
        return True

    def close(self) -> None:
        self._socket.close()


def _check(code: int) -> None:
    if code not in (0, errno.EINPROGRESS):
        raise OSError(code, os.strerror(code))


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        return reason_of(error)
    # With TLS 1.2, as etcd 3.5 speaks it, the member judges this node's certificate within the handshake.
    is_distrust = any(sign in str(error) for sign in ("ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA"))
    return f"it does not trust this node: {error}" if is_distrust else str(error)
