"""How does the client handle etcd's refusals, or no etcd at all?"""

from __future__ import annotations

import asyncio

import anyio
import grpc
import grpc.aio
import pytest

from supervisor.edges.peers.election import etcd_client
from supervisor.edges.peers.election.etcd_client import EtcdClient, Login
from supervisor.ports.rendezvous_backend import BackendRefusedError, BackendUnavailableError
from tests.etcd_server import free_ports
from tests.settling import settled


def refusal(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details, debug_error_string=None
    )


async def test_nobody_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(etcd_client, "CALL_TIMEOUT_S", 0.5)
    client = EtcdClient((f"127.0.0.1:{free_ports(1)[0]}",))
    with pytest.raises(BackendUnavailableError, match="etcd: "):
        await client.range(b"key")
    with pytest.raises(BackendUnavailableError, match="etcd: "):
        await client.keep_alive(1)
    await client.close()


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", BackendUnavailableError),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader", BackendUnavailableError),
        (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", BackendUnavailableError),
        (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", BackendRefusedError),
        (grpc.StatusCode.UNIMPLEMENTED, "unknown service", BackendRefusedError),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password",
         BackendRefusedError),
    ],
)  # fmt: skip
async def test_what_may_pass_and_what_a_person_has_to_mend(
    code: grpc.StatusCode, details: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    client = EtcdClient(("127.0.0.1:1",), login=Login("root", "secret"))

    async def refuse(*_: object) -> None:
        raise client._judged(refusal(code, details))  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(client, "_unary", refuse)
    with pytest.raises(kind, match=details.removeprefix("etcdserver: ")):
        await client.range(b"key")
    await client.close()


async def test_an_old_token_is_given_up_and_without_a_name_it_is_a_refusal():
    named, unnamed = EtcdClient(("127.0.0.1:1",), login=Login("root", "secret")), EtcdClient(("127.0.0.1:1",))
    error = refusal(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")
    named._token = "old"  # pyright: ignore[reportPrivateUsage]
    assert isinstance(named._judged(error), BackendUnavailableError)  # pyright: ignore[reportPrivateUsage]
    assert named._token == ""  # pyright: ignore[reportPrivateUsage]
    empty = refusal(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty")
    assert isinstance(unnamed._judged(empty), BackendRefusedError)  # pyright: ignore[reportPrivateUsage]
    for client in (named, unnamed):
        await client.close()


async def test_a_call_that_grpc_ends_by_a_cancellation_of_its_own_ends_no_task(monkeypatch: pytest.MonkeyPatch):
    """gRPC does so if our time limit and the end of the connection coincide."""

    async def end(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    async def end_late(*_: object, **__: object) -> None:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            raise asyncio.CancelledError from None

    client = EtcdClient(("127.0.0.1:1",))
    monkeypatch.setattr(client._channel, "unary_unary", lambda *_: end)  # pyright: ignore
    with pytest.raises(BackendUnavailableError, match="the call was ended"):
        await client.range(b"key")
    monkeypatch.setattr(client._channel, "unary_unary", lambda *_: end_late)  # pyright: ignore
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.05):
            await client.range(b"key")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.range, b"key")
        await settled()
        tasks.cancel_scope.cancel()
    await client.close()
