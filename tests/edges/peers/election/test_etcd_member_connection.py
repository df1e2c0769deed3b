"""Which endpoints are one, and is a connection made once, whoever asks for it? With TLS: test_etcd_backend.py."""

from __future__ import annotations

import errno
import socket

import anyio
import pytest

from supervisor.edges.peers.election import etcd_member_connection
from supervisor.edges.peers.election.etcd_member_connection import Endpoint, Member, MemberStream, endpoint_of
from supervisor.edges.peers.transport.name_lookup import Found
from supervisor.edges.rpc.statuses import CallError


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("10.0.0.1:2379", Endpoint("10.0.0.1", 2379)),
        ("etcd.cluster:1", Endpoint("etcd.cluster", 1)),
        ("[::1]:65535", Endpoint("::1", 65535)),
    ],
)
def test_an_endpoint(text: str, endpoint: Endpoint):
    assert endpoint_of(text) == endpoint


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "::1", "::1:2379", "[]:1", "a:0", "a:65536", "a:٣", "a:-1"])
def test_no_endpoint(text: str):
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        endpoint_of(text)


def found(address: tuple[str, int]) -> Found:
    return (socket.AF_INET, socket.SOCK_STREAM, 0, "", address)


async def test_who_refuses_is_named_and_asked_anew():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = str(server.getsockname()[0]), int(server.getsockname()[1])
    member = Member(Endpoint("e", address[1]), found(address), None)
    for _ in range(2):
        with pytest.raises(CallError, match=f"^cannot reach e:{address[1]}: connection refused$"):
            await member.connected()
    assert member.ready is None


async def test_no_descriptor_is_a_reason_like_any_other(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> MemberStream:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(etcd_member_connection, "MemberStream", fail)
    with pytest.raises(CallError, match="cannot reach e:1: too many open files"):
        await Member(Endpoint("e", 1), found(("127.0.0.1", 1)), None).connected()


async def test_a_handshake_goes_on_where_it_was_left():
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = MemberStream(found(server.getsockname()), "e", None)
        for _ in range(3):
            with anyio.move_on_after(0):
                await stream.connect()
        with anyio.fail_after(5):
            await stream.connect()
            peer, _ = server.accept()
            with peer:
                assert await stream.send(b"x")
                assert peer.recv(9) == b"x"
                peer.send(b"y")
                assert await stream.receive() == b"y"
            assert await stream.receive() == b""
        stream.close()
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
