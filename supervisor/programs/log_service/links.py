"""Which nodes or leaves are connected to this process, and what does each get back? The gRPC server of leaf and root.

Nothing from a caller counts before it has proved that it knows the job's token, or has shown a certificate; without
both, before the kernel has said that it is a process of the same user.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, Protocol

import anyio

from supervisor.core.log_funnel.pieces import Piece, Receipt
from supervisor.core.log_funnel.relay import pause_s, window_bytes
from supervisor.edges.peers.cluster_session import SessionError
from supervisor.errors import ConfigurationError
from supervisor.programs.log_service import frames_codec, same_user
from supervisor.programs.log_service.bells import Bell
from supervisor.programs.log_service.frames_codec import Batch, Terms
from supervisor.programs.log_service.secrets import Secrets, server_credentials

HANDSHAKE_S = 10.0
CALLS_MAX = 8192  # at the same time; further ones are refused and retry
STREAMS_PER_CONNECTION_MAX = 4
STOP_GRACE_S = 0.2
ALIVE_MS = 5000  # a connection that does not answer pings for this long is lost
OPTIONS = (
    ("grpc.max_receive_message_length", frames_codec.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", frames_codec.MESSAGE_BYTES_MAX),
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),  # a silent connection takes a descriptor so long
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    ("grpc.keepalive_time_ms", ALIVE_MS),
    ("grpc.keepalive_timeout_ms", ALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", ALIVE_MS // 2),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", ALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.bdp_probe", 0),  # windows would grow to megabytes per link
    ("grpc.so_reuseport", 0),
    ("grpc.optimization_target", "throughput"),
)

_log = logging.getLogger("holdfast.logs")


class Taker(Protocol):
    """Handles the pieces."""

    def take(self, link: int, piece: Piece) -> None: ...

    def lose(self, link: int) -> None:
        """Forgets a link that has ended; its caller may come back on another one."""
        ...

    async def until_room(self) -> None: ...


class _Link:
    def __init__(self) -> None:
        self.receipts: dict[int, Receipt] = {}
        self.terms: Terms | None = None
        self.bell = Bell()


class Links:
    """Serves the links. `bytes_max`: that all callers together may send ahead of receipts."""

    def __init__(self, job_id: str, secrets: Secrets, taker: Taker, *, bytes_max: int) -> None:
        self._job_id = job_id
        self._secrets = secrets
        self._taker = taker
        self._bytes_max = bytes_max
        self._address = ""
        self._has_secrets = True  # False: callers are known by their user
        self._links: dict[int, _Link] = {}
        self._last = 0
        self._told_for = 0  # number of links when terms were last sent
        self._trouble = ""
        self.on_change: Callable[[], None] = _nothing
        self.parted: set[str] = set()  # callers that have nothing more to send
        self.unparted = 0  # connections that ended without saying so

    @property
    def count(self) -> int:
        return len(self._links)

    def send(self, link: int, receipt: Receipt) -> None:
        """Sends a receipt. A later receipt of a stream replaces an earlier one."""
        if (to := self._links.get(link)) is not None:
            to.receipts[receipt.stream] = receipt
            to.bell.ring()

    def tell_trouble(self, trouble: str) -> None:
        """Reports why receipts are late; "": they are not."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._tell_terms()

    @asynccontextmanager
    async def serving(self, address: str) -> AsyncGenerator[None]:
        """Serves within the block. Raises ConfigurationError if the address is not available."""
        grpc = _grpc()
        credentials = server_credentials(self._secrets)
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        handler = grpc.stream_stream_rpc_method_handler(self._pass)
        self._address, self._has_secrets = address, credentials is not None
        services = grpc.method_handlers_generic_handler(frames_codec.SERVICE, {frames_codec.CALL: handler})
        server.add_generic_rpc_handlers((services,))
        try:
            if credentials is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ConfigurationError(
                f"cannot listen at {address}: it is in use or not an address of this node; check --ft-log-server-port"
            ) from error
        await server.start()
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await server.stop(STOP_GRACE_S)

    async def _pass(self, requests: object, context: Any) -> None:  # noqa: ANN401 - grpc's own
        del requests
        grpc = _grpc()
        try:
            if not self._has_secrets:
                same_user.check_caller(context.peer(), self._address)
            with anyio.fail_after(HANDSHAKE_S):
                proofs = self._secrets.proofs_for(_certificate(context))
                answer, caller = frames_codec.welcome(await _read(context), self._job_id, proofs)
                await context.write(answer)
        except (SessionError, TimeoutError) as error:
            _log.warning("%s is refused: %s", context.peer(), error or "it did not identify itself in time")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error) or "too late")
            raise AssertionError from error  # abort() never returns
        self._last += 1
        number, link = self._last, _Link()
        self._links[number] = link
        parts, wrong = False, ""
        _log.info("%s is connected", caller)
        try:
            self._on_count()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._answer, link, context)
                try:
                    parts = await self._listen(number, context)
                except SessionError as error:
                    wrong = str(error)
                tasks.cancel_scope.cancel()
            if wrong:
                _log.warning("%s is cut off: %s", caller, wrong)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        finally:
            del self._links[number]
            self.unparted += not parts
            if parts:
                self.parted.add(caller)
            _log.info("%s %s", caller, "has nothing more to send" if parts else "has lost its connection")
            self._taker.lose(number)
            self._on_count()

    async def _listen(self, number: int, context: Any) -> bool:  # noqa: ANN401 - grpc's own
        """Reads until the caller ends; returns whether it had nothing more to send. Raises SessionError."""
        parts = False
        while (data := await _read(context)) != b"":
            batch = frames_codec.decode(data)
            for piece in batch.pieces:
                self._taker.take(number, piece)
            parts = parts or batch.parts
            await self._taker.until_room()
        return parts

    async def _answer(self, link: _Link, context: Any) -> None:  # noqa: ANN401 - grpc's own
        while True:
            await link.bell.wait()
            receipts, link.receipts = list(link.receipts.values()), {}
            terms, link.terms = link.terms, None
            if receipts or terms is not None:
                try:
                    await context.write(frames_codec.encode(Batch(receipts=receipts, terms=terms)))
                except Exception:  # noqa: BLE001 - grpc raises many kinds: the caller is gone; its reader learns that, too
                    return

    def _on_count(self) -> None:
        """Sends terms when the number of links doubles or halves, so that a storm of joins costs each link little."""
        count = len(self._links)
        if not self._told_for <= count <= 2 * self._told_for:
            self._told_for = 1 << max(0, count.bit_length() - 1)
            self._tell_terms()
        else:
            self._tell_terms(only=self._last)
        self.on_change()

    def _tell_terms(self, only: int = 0) -> None:
        for_links = 2 * self._told_for
        terms = Terms(window_bytes(self._bytes_max, for_links), pause_s(for_links), self._trouble)
        for link in [self._links[only]] if only in self._links else self._links.values() if not only else ():
            link.terms = terms
            link.bell.ring()


def _certificate(context: Any) -> bytes:  # noqa: ANN401 - grpc's own
    """Returns the caller's certificate as PEM; b"" without TLS."""
    found = context.auth_context().get("x509_pem_cert")
    return bytes(found[0]) if found else b""


async def _read(context: Any) -> bytes:  # noqa: ANN401 - grpc's own
    """Reads a message; b"" at the end."""
    data = await context.read()
    return data if isinstance(data, bytes) else b""


def _grpc() -> Any:  # noqa: ANN401 - it has no types of its own
    """Loads grpc, only where a server runs."""
    return import_module("grpc.aio") and import_module("grpc")


def _nothing() -> None:
    """Does nothing."""
