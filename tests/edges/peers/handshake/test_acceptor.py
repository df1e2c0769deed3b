"""Strangers with thousands of connections keep no node of the job out, whatever they say or do not say there."""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from supervisor.core.cluster.cluster_messages import NodeJoined, NodeLost, Reported
from supervisor.core.cluster.handshake_admission import PLACES
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import Meeting
from supervisor.edges.peers.handshake import acceptor
from supervisor.edges.peers.handshake.acceptor import Acceptor
from supervisor.edges.peers.handshake.hello_exchange import STRANGER
from supervisor.edges.peers.stream.cluster_client import ClusterClient
from supervisor.edges.peers.transport import cluster_tls
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls
from supervisor.edges.peers.transport.leader_listener import listen_beside
from supervisor.edges.peers.transport.preamble import CONNECTS_HERE, Preamble, key_of
from tests.edges.peers.certificates import make_authority, make_node
from tests.edges.peers.embedded.test_cluster_peers import JOB, TOKEN, Heard, free_port
from tests.settling import settled

LIMIT_S = 60.0
SOAK_S = 60
BACK_S = 2.0  # a cut node is back by then, also on a busy machine: well before it would be lost
OTHER = 54321
KEY = key_of(TOKEN)
ATTACKERS = Path(__file__).with_name("preamble_attackers.py")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def attacked(port: int, host: str, uid: int, count: int, what: str) -> AsyncGenerator[None]:
    command = [sys.executable, str(ATTACKERS), str(port), host, str(uid), str(count), what]
    process = await anyio.open_process(command, stderr=None)
    try:
        assert process.stdout is not None
        with anyio.fail_after(LIMIT_S):
            assert (await process.stdout.receive()).startswith(b"all have")
        yield
    finally:
        process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


class Node:
    def __init__(self, name: str, port: int, tls: Tls | None) -> None:
        self.name = name
        self.heard = Heard()
        self.lost: list[str] = []
        self.client = ClusterClient(
            PeerAddress("127.0.0.1", port), job_id=JOB, own_name=name, on_order=self.heard.post,
            on_lost=self.lost.append, tls=tls,
        )  # fmt: skip

    def cut(self) -> None:
        line = self.client._conversation.line  # pyright: ignore[reportPrivateUsage]
        assert line is not None
        line.end("the test cuts it")


async def join(node: Node, number: int, at_leader: Heard) -> float:
    """Lets the node say something; returns how long it took until the leader had heard it."""
    since_s, joined = anyio.current_time(), NodeJoined(node.name, number)
    node.client.report(Reported(JOB, joined))
    await at_leader.until(lambda: joined in at_leader.reports())
    return anyio.current_time() - since_s


# Without secrets, strangers are other users; with a token, processes of any user; with certificates, hosts.
ATTACKS = [
    ("", 900, "idle", "127.0.0.1", OTHER),
    ("", 900, "letter", "127.0.0.1", OTHER),
    ("token", 900, "idle", "127.0.0.1", 0),
    ("token", 3000, "idle", "127.0.0.1", 0),
    ("token", 900, "half", "127.0.0.1", 0),
    ("token", 900, "slow", "127.0.0.1", 0),
    ("token", 900, "letter", "127.0.0.1", 0),
    ("token", 900, "hello", "127.0.0.1", 0),
    ("certificates", 900, "idle", "127.0.0.1", 0),
    ("certificates", 900, "hello", "127.0.0.66", 0),
]


@needs_root
@pytest.mark.parametrize(("secret", "count", "what", "host", "uid"), ATTACKS)
async def test_a_node_that_reconnects_is_back_at_once_and_a_newcomer_joins(
    secret: str, count: int, what: str, host: str, uid: int, tmp_path: Path
):
    tls = cluster_tls.from_token(TOKEN) if secret == "token" else None
    if secret == "certificates":
        make_authority(tmp_path)
        tls = cluster_tls.load(make_node(tmp_path))
    port, at_leader = free_port(), Heard()
    meeting = Meeting(JOB, "a", PeerAddress("127.0.0.1", port), LIMIT_S, tls=tls)
    async with cluster_peers.open_peers(meeting, at_leader.post), anyio.create_task_group() as tasks:
        member = Node("b", port, tls)
        tasks.start_soon(lambda: member.client.run(join_timeout_s=LIMIT_S))
        await join(member, 0, at_leader)
        async with attacked(port, host, uid, count, what):
            for number in range(1, 4):
                member.cut()
                assert await join(member, number, at_leader) < BACK_S
            newcomer = Node("c", port, tls)
            tasks.start_soon(lambda: newcomer.client.run(join_timeout_s=LIMIT_S))
            await join(newcomer, 0, at_leader)
        assert not [each for each in at_leader.reports() if isinstance(each, NodeLost)]
        assert member.lost == newcomer.lost == []
        tasks.cancel_scope.cancel()


async def test_a_node_with_a_certificate_is_back_at_once_even_if_strangers_share_its_address(tmp_path: Path):
    """They hold all places of that address: a newcomer from there would have to wait."""
    make_authority(tmp_path)
    tls = cluster_tls.load(make_node(tmp_path))
    port, at_leader = free_port(), Heard()
    meeting = Meeting(JOB, "a", PeerAddress("127.0.0.1", port), LIMIT_S, tls=tls)
    async with cluster_peers.open_peers(meeting, at_leader.post), anyio.create_task_group() as tasks:
        member = Node("b", port, tls)
        tasks.start_soon(lambda: member.client.run(join_timeout_s=LIMIT_S))
        await join(member, 0, at_leader)
        async with attacked(port, "127.0.0.1", os.getuid(), 900, "hello"):
            for number in range(1, 4):
                member.cut()
                assert await join(member, number, at_leader) < BACK_S
        tasks.cancel_scope.cancel()


@needs_root
@pytest.mark.soak
@pytest.mark.parametrize("secret", ["token", "certificates"])
async def test_for_a_minute_nobody_is_lost_whatever_many_strangers_do(secret: str, tmp_path: Path):
    tls = cluster_tls.from_token(TOKEN)
    if secret == "certificates":
        make_authority(tmp_path)
        tls = cluster_tls.load(make_node(tmp_path))
    port, at_leader = free_port(), Heard()
    meeting = Meeting(JOB, "a", PeerAddress("127.0.0.1", port), LIMIT_S, tls=tls)
    async with cluster_peers.open_peers(meeting, at_leader.post), AsyncExitStack() as attacks:
        tasks = await attacks.enter_async_context(anyio.create_task_group())
        members = [Node(f"node-{number}", port, tls) for number in range(4)]
        for each in members:
            tasks.start_soon(lambda each=each: each.client.run(join_timeout_s=LIMIT_S))
            await join(each, 0, at_leader)
        for number, what in enumerate(("idle", "half", "slow", "letter", "hello")):
            await attacks.enter_async_context(attacked(port, f"127.0.0.{66 + number}", OTHER, 600, what))
        slowest_s = 0.0
        for number in range(1, SOAK_S):
            members[number % 4].cut()
            slowest_s = max(slowest_s, await join(members[number % 4], number, at_leader))
            await anyio.sleep(1)
        assert slowest_s < BACK_S
        assert not [each for each in at_leader.reports() if isinstance(each, NodeLost)]
        assert not any(each.lost for each in members)
        tasks.cancel_scope.cancel()


async def nobody(sock: socket.socket) -> bool:
    """Never ends its handshake."""
    with sock:
        await anyio.sleep_forever()
    return False


@asynccontextmanager
async def accepting(by: Acceptor) -> AsyncGenerator[int]:
    listener, port = listen_beside("127.0.0.1")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(by.run, [listener])
        yield port
        tasks.cancel_scope.cancel()


def connect(port: int, count: int, says: bytes = b"") -> list[socket.socket]:
    nodes = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for each in nodes:
        each.send(says)
    return nodes


def waiting(by: Acceptor) -> int:
    return len(by._waiting)  # pyright: ignore[reportPrivateUsage]


async def test_descriptors_of_those_who_wait_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(acceptor, "WAITING_MAX", 10)
    by = Acceptor(nobody, preamble_key=KEY, has_token=True, has_certificates=False)
    async with accepting(by) as port:
        silent = connect(port, 50)
        await settled()
        assert waiting(by) == 10
        [node] = connect(port, 1, Preamble(CONNECTS_HERE, KEY).says)
        await settled()
        assert waiting(by) == 10  # The node has a place.
        for each in (*silent, node):
            each.close()


async def test_members_that_wait_are_left_alone_and_others_wait_at_the_listening_socket(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(acceptor, "WAITING_MAX", 10)
    by = Acceptor(nobody, preamble_key=KEY, has_token=True, has_certificates=False)
    async with accepting(by) as port:
        nodes = [connect(port, 1, Preamble(CONNECTS_HERE, KEY).says)[0] for _ in range(PLACES)]
        await settled()
        assert waiting(by) == 10
        for each in nodes:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):  # Nobody was closed.
                each.recv(1)
            each.close()


async def test_who_says_nothing_is_closed_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(acceptor, "SILENT_S", 0.1)
    by = Acceptor(nobody, preamble_key=KEY, has_token=True, has_certificates=False)
    async with accepting(by) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as silent:
            with anyio.fail_after(LIMIT_S), pytest.raises(anyio.EndOfStream):
                await silent.receive()
        assert waiting(by) == 0


async def test_who_is_refused_fills_no_log(caplog: pytest.LogCaptureFixture):
    by = Acceptor(nobody, preamble_key=KEY, has_token=True, has_certificates=False)
    async with accepting(by) as port:
        for each in connect(port, 20, CONNECTS_HERE):
            with each:
                await settled()
                assert Preamble(CONNECTS_HERE).read(each.recv(1000)).endswith(STRANGER)
        assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1


async def test_a_handshake_that_fails_costs_its_address_a_place_for_a_moment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(acceptor, "FAILED_S", 60.0)
    served: list[socket.socket] = []

    async def fail(sock: socket.socket) -> bool:
        served.append(sock)
        return False

    async with accepting(Acceptor(fail, preamble_key=b"", has_token=False, has_certificates=True)) as port:
        nodes = connect(port, 2 * PLACES, CONNECTS_HERE)
        await settled()
        assert len(served) == PLACES // 2
        for each in (*nodes, *served):
            each.close()


@pytest.mark.parametrize(
    ("host", "source"),
    [("10.0.0.7", "10.0.0.7"), ("2001:db8::1:2:3:4", "2001:db8::/64"), ("fe80::1%lo", "fe80::/64")],
)
def test_an_ipv6_network_counts_as_one_address(host: str, source: str):
    assert acceptor.source_of(host) == source
