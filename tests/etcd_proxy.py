"""A gRPC proxy in front of a real etcd that answers as etcd does in trouble: too many requests, a compacted history,
missing events. It forwards bytes and knows only where a watch answer has its fields.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol, cast

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # this process starts others
import grpc
import grpc.aio
from holdfast_wire.v1 import etcd_pb2 as etcd

WATCH = "/etcdserverpb.Watch/Watch"
Context = grpc.aio.ServicerContext[bytes, bytes]
STREAMS = (WATCH, "/etcdserverpb.Lease/LeaseKeepAlive")


class Stream(Protocol):
    async def read(self) -> object: ...

    def cancel(self) -> bool: ...


class EtcdProxy:
    def __init__(self, target: str) -> None:
        self.refuses = False  # etcd does so if it has more than 5,000 entries to apply
        self.loses_events = False
        self.compacts = 0  # how many watches end as if their history were gone
        self.refused = 0
        self.lost = 0
        self.port = 0
        self._channel: Any = grpc.aio.insecure_channel(target)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = str(details.method)
        told = cast("list[tuple[str, str]]", details.invocation_metadata)  # pyright: ignore
        headers = [each for each in told if not each[0].startswith(("grpc-", "user-agent", ":"))]

        async def once(request: bytes, context: Context) -> bytes:
            await self._refuse(context)
            try:
                call: Any = self._channel.unary_unary(method)
                return await call(request, metadata=headers, timeout=10)
            except grpc.aio.AioRpcError as error:
                return await context.abort(error.code(), error.details() or "")

        async def stream(requests: AsyncIterator[bytes], context: Context) -> AsyncGenerator[bytes]:
            await self._refuse(context)
            call = self._open(method, requests, headers)
            try:
                if method == WATCH and self.compacts:
                    self.compacts -= 1
                    yield etcd.WatchResponse(canceled=True, compact_revision=10**9).SerializeToString()
                    return
                while isinstance(answer := await call.read(), bytes):
                    if method == WATCH and self.loses_events and etcd.WatchResponse.FromString(answer).events:
                        self.lost += 1
                        continue
                    yield answer
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
            finally:
                call.cancel()

        if method in STREAMS:
            return grpc.stream_stream_rpc_method_handler(stream)  # pyright: ignore
        return grpc.unary_unary_rpc_method_handler(once)  # pyright: ignore

    def _open(self, method: str, requests: AsyncIterator[bytes], headers: list[tuple[str, str]]) -> Stream:
        opened: Any = self._channel.stream_stream(method)
        return cast("Stream", opened(requests, metadata=headers))

    async def _refuse(self, context: Context) -> None:
        if self.refuses:
            self.refused += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests")

    async def close(self) -> None:
        await self._channel.close(None)


@asynccontextmanager
async def etcd_proxy(target: str) -> AsyncGenerator[EtcdProxy]:
    proxy = EtcdProxy(target)
    server: Any = grpc.aio.server()  # pyright: ignore[reportUnknownMemberType]
    server.add_generic_rpc_handlers((proxy,))
    proxy.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield proxy
    finally:
        await server.stop(None)
        await proxy.close()
