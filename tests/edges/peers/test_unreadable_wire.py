"""With a token, whoever sits on the wire between two nodes reads nothing, and changes nothing unnoticed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import NodeDown, NodeFailed, NodeLost, Reported
from supervisor.core.election import leader_loss_detection
from supervisor.edges.peers.codec.cluster_frames import Asked
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import Meeting
from supervisor.edges.peers.stream.cluster_client import ClusterClient
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls
from tests.edges.peers.embedded.test_cluster_peers import LIMIT_S, TLS, Heard, again, free_port

JOB = "planted-in-the-job-id"
WORD = b"planted"


@pytest.fixture(autouse=True)
def leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the leader not wait for a node that is gone."""
    monkeypatch.setattr(cluster_peers, "PARTING_S", 0.1)


class Spy:
    """Everything that went by, and what is to be done with the next piece of one direction."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.connections = 0
        self.change: dict[str, Callable[[bytes], bytes]] = {}

    def pass_on(self, direction: str, data: bytes) -> bytes:
        self.seen += data
        change = self.change.pop(direction, None)
        return change(data) if change is not None else data


@asynccontextmanager
async def spied_wire(port: int) -> AsyncGenerator[tuple[int, Spy]]:
    spy = Spy()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)

    async def carry(source: SocketStream, sink: SocketStream, direction: str, scope: anyio.CancelScope) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await sink.send(spy.pass_on(direction, await source.receive()))
        scope.cancel()

    async def serve(near: SocketStream) -> None:
        spy.connections += 1
        async with near, await anyio.connect_tcp("127.0.0.1", port) as far, anyio.create_task_group() as both:
            both.start_soon(carry, near, far, "to leader", both.cancel_scope)
            both.start_soon(carry, far, near, "to node", both.cancel_scope)

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port), spy
        tasks.cancel_scope.cancel()


class Node:
    def __init__(
        self, client: ClusterClient, heard: Heard, at_leader: Heard, leader: cluster_peers.LeaderPeers
    ) -> None:
        self.client, self.heard, self.at_leader, self.leader = client, heard, at_leader, leader


@asynccontextmanager
async def a_spied_node(tls: Tls | None) -> AsyncGenerator[tuple[Node, Spy]]:
    port, at_leader, heard = free_port(), Heard(), Heard()
    meeting = Meeting(JOB, "a", PeerAddress("127.0.0.1", port), LIMIT_S, tls)
    async with cluster_peers.open_peers(meeting, at_leader.post) as leader, spied_wire(port) as (wire, spy):
        assert isinstance(leader, cluster_peers.LeaderPeers)
        client = ClusterClient(
            PeerAddress("127.0.0.1", wire), job_id=JOB, own_name="planted-node", on_order=heard.post, tls=tls,
            on_lost=lambda why: heard.events.append(Reported(JOB, NodeLost("leader", why))),
        )  # fmt: skip
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.run(join_timeout_s=LIMIT_S))
            yield Node(client, heard, at_leader, leader), spy
            client.forget()
            tasks.cancel_scope.cancel()


async def speak_of(word: str, node: Node) -> None:
    """Sends the word in an order, a report and a question."""
    node.client.report(Reported(JOB, NodeFailed("planted-node", 0, f"a report with a {word}")))
    await node.at_leader.until(lambda: node.at_leader.events)
    node.leader.send("planted-node", JOB, orders.JoinAgain(1, f"an order with a {word}"))
    await node.heard.until(lambda: node.heard.events)
    assert node.client.say_aside(Asked(JOB, "", "planted-node", 1, f"a question with a {word}".encode()))


async def test_nothing_that_nodes_with_a_token_say_is_readable_on_the_wire():
    async with a_spied_node(TLS) as (node, spy):
        await speak_of("planted word", node)
        assert len(spy.seen) > 500
        assert WORD not in spy.seen


async def test_the_spy_would_see_it():
    """Without a token, which only loopback addresses allow, all of it is there."""
    async with a_spied_node(None) as (node, spy):
        await speak_of("planted word", node)
        for each in (b"a report with a planted", b"an order with a planted", b"planted-in-the-job-id", b"planted-node"):
            assert each in spy.seen


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "flip": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "replay": lambda data: data + data,
    "cut": lambda data: data[:-1],
}


@pytest.mark.parametrize("direction", ["to leader", "to node"])
@pytest.mark.parametrize("change", CHANGES)
async def test_bytes_that_were_changed_end_the_connection_and_nothing_is_lost_or_doubled(
    direction: str, change: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leader_loss_detection, "FENCE_S", LIMIT_S)
    async with a_spied_node(TLS) as (node, spy):
        for number in range(6):
            if number % 2:
                spy.change[direction] = CHANGES[change]
            node.client.report(Reported(JOB, NodeDown("planted-node", number)))
            await node.at_leader.until(lambda number=number: len(node.at_leader.events) == number + 1)
            node.leader.send("planted-node", JOB, again(number))
            await node.heard.until(lambda number=number: len(node.heard.events) == number + 1)
        assert node.at_leader.reports() == [NodeDown("planted-node", number) for number in range(6)]
        assert node.heard.orders() == [again(number) for number in range(6)]
        assert spy.connections > 1
