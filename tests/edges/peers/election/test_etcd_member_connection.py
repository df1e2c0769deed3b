"""Which endpoints are one, and is a connection made once, whoever asks for it? With TLS: test_etcd_backend.py."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from supervisor.edges.peers.election import etcd_member_connection
from supervisor.edges.peers.election.etcd_member_connection import Endpoint, Member, MemberStream, endpoint_of
from supervisor.edges.peers.transport.name_lookup import Found
from supervisor.edges.rpc.statuses import CallError
from tests.edges.peers.certificates import make_authority, make_node


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


class SilentHost:
    """An address at which packets get lost: the kernel drops connections that find the queue full."""

    def __init__(self, host: str, port: int) -> None:
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((host, port))
        self.listener.listen(0)
        self.endpoint = Endpoint(host, int(self.listener.getsockname()[1]))
        self._only = socket.create_connection((host, self.endpoint.port))

    def come_back(self) -> None:
        """Takes the next connections."""
        self.listener.accept()[0].close()

    def close(self) -> None:
        self.listener.close()
        self._only.close()


@contextmanager
def silent_host(host: str = "127.0.0.1", port: int = 0) -> Generator[SilentHost]:
    silent = SilentHost(host, port)
    try:
        yield silent
    finally:
        silent.close()


async def test_a_host_that_comes_back_is_reached_by_the_next_call(monkeypatch: pytest.MonkeyPatch):
    """The kernel alone would repeat the lost packet up to a minute later."""
    monkeypatch.setattr(etcd_member_connection, "CONNECT_S", 0.01)
    with silent_host() as silent:
        host, port = silent.endpoint.host, silent.endpoint.port
        member = Member(silent.endpoint, found((host, port)), None)
        with anyio.move_on_after(0.05):
            await member.connected()
        silent.come_back()
        with anyio.move_on_after(0.05):
            await member.connected()
        silent.listener.setblocking(False)
        silent.listener.accept()[0].close()
        member.close()


async def test_a_handshake_that_stays_unanswered_is_begun_again(monkeypatch: pytest.MonkeyPatch):
    """The member's host may have gone within it: then nothing ends the connection."""
    monkeypatch.setattr(etcd_member_connection, "CONNECT_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        member = Member(Endpoint("127.0.0.1", port), found(("127.0.0.1", port)), ssl.create_default_context())
        for _ in range(2):
            with anyio.move_on_after(0.05):
                await member.connected()
            server.setblocking(False)
            server.accept()[0].close()
        member.close()


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


async def test_a_member_that_does_not_trust_this_node_within_the_handshake_is_quoted(tmp_path: Path):
    """So it is with TLS 1.2, as etcd 3.5.1 speaks it. With TLS 1.3 the member says so later."""
    trusted, other = make_authority(tmp_path), make_authority(tmp_path, "other")
    of_member = make_node(tmp_path, "member", address="127.0.0.1")
    of_node = make_node(tmp_path, "node", authority="other")
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.maximum_version = ssl.TLSVersion.TLSv1_2
    server_side.load_cert_chain(of_member.certificate, of_member.key)
    server_side.load_verify_locations(trusted)
    server_side.verify_mode = ssl.CERT_REQUIRED
    client_side = ssl.create_default_context(cafile=str(trusted))
    client_side.load_cert_chain(of_node.certificate, of_node.key)
    assert other.exists()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            peer, _ = server.accept()
            with peer, suppress(ssl.SSLError):
                server_side.wrap_socket(peer, server_side=True)

        member_side = threading.Thread(target=refuse)
        member_side.start()
        port = int(server.getsockname()[1])
        with pytest.raises(CallError, match=r"^cannot reach 127.0.0.1:\d+: it does not trust this node: .*alert"):
            await Member(Endpoint("127.0.0.1", port), found(("127.0.0.1", port)), client_side).connected()
        member_side.join()
