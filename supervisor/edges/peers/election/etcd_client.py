"""How are the few calls of etcd made that an election needs?

A thin client of API v3 on grpc.aio, with our own messages (proto/holdfast_wire/v1/etcd.proto). Each call has a
deadline. Temporary failures raise BackendUnavailableError; those that a person must fix raise BackendRefusedError.
"""

from __future__ import annotations

import asyncio  # grpc.aio raises its exceptions
from collections.abc import AsyncGenerator, Awaitable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import anyio.lowlevel
import grpc
import grpc.aio
import msgspec
from google.protobuf.message import Message
from holdfast_wire.v1 import etcd_pb2 as etcd

from supervisor.ports.rendezvous_backend import BackendRefusedError, BackendUnavailableError

CALL_TIMEOUT_S = 2.0
REFUSED = frozenset({grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED})
TOKEN_WORDS = ("invalid auth token", "user name is empty")  # etcd's words; its tokens last a few minutes
PASSWORD_WORDS = ("authentication failed", "user name not found", "invalid user ID or password")

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")


class Login(msgspec.Struct, frozen=True):
    user: str
    password: str


class CompactedError(Exception):
    """Raised if the revision to be watched is gone: the caller must read the current state."""


class _Stream(Protocol):
    """A bidirectional call of grpc.aio, which grpc's stubs lack."""

    async def write(self, request: Message) -> None: ...

    async def read(self) -> object: ...

    def cancel(self) -> bool: ...


class EtcdClient:
    """A client of one etcd cluster. Use it in one event loop only."""

    def __init__(
        self,
        targets: tuple[str, ...],
        *,
        credentials: grpc.ChannelCredentials | None = None,
        login: Login | None = None,
    ) -> None:
        options = [
            ("grpc.enable_retries", 0),
            ("grpc.keepalive_time_ms", 2000),
            ("grpc.keepalive_timeout_ms", 2000),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.lb_policy_name", "round_robin"),
            ("grpc.enable_http_proxy", 0),
        ]
        target = targets[0] if len(targets) == 1 else f"ipv4:{','.join(targets)}"
        self._channel = (
            grpc.aio.insecure_channel(target, options=options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options=options)
        )
        self._login = login
        self._token = ""

    async def txn(self, request: etcd.TxnRequest) -> etcd.TxnResponse:
        return await self._call("KV/Txn", request, etcd.TxnResponse)

    async def range(self, key: bytes, *, end: bytes = b"", limit: int = 0) -> etcd.RangeResponse:
        """Reads keys linearizably, as the cluster's majority has them. `end`: all keys before it, at most `limit`."""
        return await self._call("KV/Range", etcd.RangeRequest(key=key, range_end=end, limit=limit), etcd.RangeResponse)

    async def remove(self, key: bytes, *, changed_at: int) -> None:
        """Removes the key unless it has changed since that revision."""
        delete = etcd.RequestOp(request_delete_range=etcd.DeleteRangeRequest(key=key))
        compare = etcd.Compare(target=etcd.Compare.MOD, key=key, mod_revision=changed_at)
        await self.txn(etcd.TxnRequest(compare=[compare], success=[delete]))

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        """Grants a lease. Returns its id and its length in seconds, which the server may extend."""
        told = await self._call("Lease/LeaseGrant", etcd.LeaseGrantRequest(TTL=ttl_s), etcd.LeaseGrantResponse)
        return told.ID, told.TTL

    async def revoke(self, lease: int) -> None:
        await self._call("Lease/LeaseRevoke", etcd.LeaseRevokeRequest(ID=lease), etcd.LeaseRevokeResponse)

    async def keep_alive(self, lease: int) -> bool:
        """Renews the lease. Returns False if there is no such lease any more."""
        kind = etcd.LeaseKeepAliveResponse
        await self._log_in()
        try:
            call = self._stream("Lease/LeaseKeepAlive", kind, timeout_s=CALL_TIMEOUT_S)
            await _sound(call.write(etcd.LeaseKeepAliveRequest(ID=lease)))
            told = await _sound(call.read())
            call.cancel()
        except grpc.aio.AioRpcError as error:
            raise self._judged(error) from error
        if not isinstance(told, kind):
            raise BackendUnavailableError("etcd has closed the stream of a lease")
        return told.TTL > 0

    async def watch(self, key: bytes, from_revision: int) -> AsyncGenerator[etcd.WatchResponse]:
        """Yields changes of one key, after an empty answer once the watch is set up. Raises CompactedError."""
        kind = etcd.WatchResponse
        await self._log_in()
        call = self._stream("Watch/Watch", kind)
        try:
            create = etcd.WatchCreateRequest(key=key, start_revision=from_revision)
            await _sound(call.write(etcd.WatchRequest(create_request=create)))
            while isinstance(told := await _sound(call.read()), kind):
                if told.compact_revision:
                    raise CompactedError
                if told.canceled:
                    raise BackendUnavailableError(f"etcd has ended the watch: {told.cancel_reason}")
                yield told
            raise BackendUnavailableError("etcd has ended the watch")
        except grpc.aio.AioRpcError as error:
            raise self._judged(error) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        with suppress(grpc.aio.AioRpcError):
            await self._channel.close(None)

    def _stream(self, method: str, kind: type[Message], *, timeout_s: float | None = None) -> _Stream:
        opened: Any = self._channel.stream_stream(f"/etcdserverpb.{method}", _bytes_of, kind.FromString)  # pyright: ignore
        return opened(timeout=timeout_s, metadata=self._metadata())

    async def _call(self, method: str, request: Message, kind: type[Answer]) -> Answer:
        await self._log_in()
        return await self._unary(method, request, kind, self._metadata())

    async def _unary(
        self, method: str, request: Message, kind: type[Answer], metadata: tuple[tuple[str, str], ...]
    ) -> Answer:
        call: Any = self._channel.unary_unary(f"/etcdserverpb.{method}", _bytes_of, kind.FromString)  # pyright: ignore
        try:
            return await _sound(call(request, timeout=CALL_TIMEOUT_S, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            raise self._judged(error) from error

    async def _log_in(self) -> None:
        if self._login is None or self._token:
            return
        request = etcd.AuthenticateRequest(name=self._login.user, password=self._login.password)
        told = await self._unary("Auth/Authenticate", request, etcd.AuthenticateResponse, ())
        self._token = told.token

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """Requires a leader: a member cut off from the majority then refuses instead of being silent."""
        return (("hasleader", "true"), *((("token", self._token),) if self._token else ()))

    def _judged(self, error: grpc.aio.AioRpcError) -> BackendUnavailableError | BackendRefusedError:
        text = (error.details() or error.code().name).removeprefix("etcdserver: ")
        if any(words in text for words in TOKEN_WORDS) and self._login is not None:
            self._token = ""  # the next call fetches a new one
            return BackendUnavailableError(f"etcd: {text}")
        if error.code() in REFUSED or any(words in text for words in (*TOKEN_WORDS, *PASSWORD_WORDS)):
            return BackendRefusedError(f"etcd refuses: {text}")
        return BackendUnavailableError(f"etcd: {text}")


async def _sound(call: Awaitable[Result]) -> Result:
    """Translates a CancelledError that grpc.aio raises itself, because anyio would end its task for no reason."""
    try:
        return await call
    except asyncio.CancelledError as error:
        await anyio.lowlevel.checkpoint_if_cancelled()  # through anyio, which knows only its own cancellation
        raise BackendUnavailableError("etcd: the call was ended") from error
    except asyncio.InvalidStateError as error:
        raise BackendUnavailableError(f"etcd: {error}") from error


def _bytes_of(message: Message) -> bytes:
    return message.SerializeToString()
