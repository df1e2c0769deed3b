"""How does the client handle etcd's refusals, or no etcd at all?"""

from __future__ import annotations

import pytest

from supervisor.edges.peers.election import etcd_client
from supervisor.edges.peers.election.etcd_client import EtcdClient, Login
from supervisor.edges.peers.election.etcd_member_connection import Endpoint
from supervisor.edges.rpc.statuses import CallError, Status
from supervisor.ports.rendezvous_backend import BackendRefusedError, BackendUnavailableError
from tests.etcd_server import free_ports

NOBODY = (Endpoint("127.0.0.1", 1),)


async def test_nobody_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(etcd_client, "CALL_TIMEOUT_S", 0.5)
    client = EtcdClient([Endpoint("127.0.0.1", free_ports(1)[0])])
    with pytest.raises(BackendUnavailableError, match=r"etcd: cannot reach 127.0.0.1:[0-9]+: connection refused"):
        await client.range(b"key")
    with pytest.raises(BackendUnavailableError, match=r"etcd: cannot reach 127.0.0.1:[0-9]+: connection refused"):
        await client.keep_alive(1)
    client.close()


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (Status.RESOURCE_EXHAUSTED, "etcdserver: too many requests", BackendUnavailableError),
        (Status.UNAVAILABLE, "etcdserver: no leader", BackendUnavailableError),
        (Status.UNAUTHENTICATED, "etcdserver: invalid auth token", BackendUnavailableError),
        (Status.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", BackendUnavailableError),
        (Status.PERMISSION_DENIED, "etcdserver: permission denied", BackendRefusedError),
        (Status.UNIMPLEMENTED, "unknown service", BackendRefusedError),
        (Status.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password",
         BackendRefusedError),
    ],
)  # fmt: skip
async def test_what_may_pass_and_what_a_person_has_to_mend(
    code: Status, details: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    client = EtcdClient(NOBODY, login=Login("root", "secret"))

    async def refuse(*_: object) -> None:
        raise client._judged(CallError(code, details))  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(client, "_unary", refuse)
    with pytest.raises(kind, match=details.removeprefix("etcdserver: ")):
        await client.range(b"key")
    client.close()


async def test_an_old_token_is_given_up_and_without_a_name_it_is_a_refusal():
    named, unnamed = EtcdClient(NOBODY, login=Login("root", "secret")), EtcdClient(NOBODY)
    for words in ("invalid auth token", "revision of auth store is old"):
        error = CallError(Status.UNAUTHENTICATED, f"etcdserver: {words}")
        named._token = "old"  # pyright: ignore[reportPrivateUsage]
        assert isinstance(named._judged(error), BackendUnavailableError)  # pyright: ignore[reportPrivateUsage]
        assert named._token == ""  # pyright: ignore[reportPrivateUsage]
    empty = CallError(Status.INVALID_ARGUMENT, "etcdserver: user name is empty")
    assert isinstance(unnamed._judged(empty), BackendRefusedError)  # pyright: ignore[reportPrivateUsage]
    for client in (named, unnamed):
        client.close()
