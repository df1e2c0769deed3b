"""A connection that works in one direction only, or that a node does not read, harms nobody and costs little."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketAttribute, SocketStream

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import NodeDown, NodeJoined, NodeLost, Reported
from supervisor.core.election import leader_loss_detection, link_silence, node_loss_detection
from supervisor.edges.peers.codec import cluster_codec
from supervisor.edges.peers.codec.cluster_frames import Frame
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import LeaderPeers, Meeting
from supervisor.edges.peers.stream import cluster_client
from supervisor.edges.peers.transport import cluster_connect, cluster_session
from supervisor.edges.peers.transport.cluster_line import Line
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from tests.edges.peers.embedded.test_cluster_peers import JOB, LIMIT_S, TLS, Heard, again, free_port, peers


class Gates:
    """Gates on a connection to the leader: data passes in each direction while its gate is open."""

    def __init__(self) -> None:
        self.connections = 0
        self.came_again = anyio.Event()
        self.to_leader = anyio.Event()
        self.to_node = anyio.Event()
        self.to_leader.set()
        self.to_node.set()


@asynccontextmanager
async def gated_wire(port: int) -> AsyncGenerator[tuple[int, Gates]]:
    gates = Gates()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)

    async def carry(source: SocketStream, sink: SocketStream, which: str) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await getattr(gates, which).wait()
                data = await source.receive(65536)
                await getattr(gates, which).wait()
                await sink.send(data)

    async def serve(stream: SocketStream) -> None:
        gates.connections += 1
        if gates.connections > 1:
            gates.came_again.set()
        async with stream, await anyio.connect_tcp("127.0.0.1", port) as onward, anyio.create_task_group() as both:
            both.start_soon(carry, stream, onward, "to_leader")
            both.start_soon(carry, onward, stream, "to_node")

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port), gates
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def node_behind_gates(port: int, name: str = "b") -> AsyncGenerator[tuple[Heard, Gates]]:
    heard = Heard()
    async with gated_wire(port) as (wire, gates), anyio.create_task_group() as tasks:
        meeting = Meeting(JOB, name, PeerAddress("127.0.0.1", wire), LIMIT_S, TLS)

        async def follow() -> None:
            follower = cluster_peers.FollowerPeers(meeting, heard.post)
            follower.report(JOB, NodeJoined(name, -1))
            await follower.run()

        tasks.start_soon(follow)
        yield heard, gates
        tasks.cancel_scope.cancel()


async def test_a_node_that_the_leader_does_not_hear_ends_its_workers_though_it_hears_the_leader(
    monkeypatch: pytest.MonkeyPatch,
):
    """The leader will give the node up, so orders must not keep the node from noticing."""
    monkeypatch.setattr(leader_loss_detection, "FENCE_S", 0.5)
    monkeypatch.setattr(link_silence, "ALIVE_S", 0.1)
    monkeypatch.setattr(cluster_peers, "PARTING_S", 0.1)
    port = free_port()
    async with peers("a", port) as (leader, at_leader), node_behind_gates(port) as (at_b, gates):
        await at_leader.until(lambda: at_leader.events)
        gates.to_leader = anyio.Event()
        with anyio.fail_after(LIMIT_S):
            for number in range(10_000):
                leader.send("b", JOB, again(number))
                await anyio.sleep(0.01)
                if any(isinstance(each, orders.StandBack) for each in at_b.orders()):
                    break
        ends = [each for each in at_b.orders() if isinstance(each, orders.StandBack)]
        assert "is lost: it has not answered for 0.5 s" in ends[0].reason
        assert again(0) in at_b.orders()


async def test_a_node_that_reads_nothing_is_given_up_and_the_others_hear_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_session, "KEPT_BYTES_MAX", 2_000_000)
    port = free_port()
    behind = node_behind_gates(port)
    async with peers("a", port) as (leader, at_leader), behind as (_, gates), peers("c", port) as (c, at_c):
        c.report(JOB, NodeJoined("c", -1))
        await at_leader.until(lambda: len(at_leader.events) == 2)
        gates.to_node = anyio.Event()
        long = orders.JoinAgain(1, "r" * 8000)
        for number in range(300):
            leader.send("b", JOB, long)
            leader.send("c", JOB, again(number))
            await anyio.lowlevel.checkpoint()
        await at_c.until(lambda: len(at_c.events) == 300)
        lost = NodeLost("b", "node b is lost: more than 1 MiB wait for it")
        await at_leader.until(lambda: len(at_leader.events) == 3)
        assert at_leader.reports()[2] == lost


async def test_a_node_that_confirms_nothing_is_reconnected_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link_silence, "UNCONFIRMED_S", 0.2)
    monkeypatch.setattr(node_loss_detection, "CHECK_S", 0.05)
    monkeypatch.setattr(node_loss_detection, "LOST_S", 0.2)
    monkeypatch.setattr(link_silence, "LATE_S", LIMIT_S)
    port = free_port()
    async with peers("a", port) as (leader, at_leader), node_behind_gates(port) as (_, gates):
        await at_leader.until(lambda: at_leader.events)
        gates.to_node = anyio.Event()
        leader.send("b", JOB, again(1))
        await at_leader.until(lambda: len(at_leader.events) == 2)
        lost = at_leader.reports()[1]
        assert isinstance(lost, NodeLost)
        assert re.fullmatch(r"node b is lost: it has confirmed nothing for 0\.[2-4] s", lost.reason)


async def test_an_order_for_all_is_encoded_once(monkeypatch: pytest.MonkeyPatch):
    encoded: list[object] = []
    encode = cluster_codec.encode
    port = free_port()
    async with peers("a", port) as (leader, at_leader), peers("b", port) as (b, at_b), peers("c", port) as (c, at_c):
        assert isinstance(leader, LeaderPeers)
        b.report(JOB, NodeDown("b", 0))
        c.report(JOB, NodeDown("c", 0))
        await at_leader.until(lambda: len(at_leader.events) == 2)

        def counted(frame: Frame) -> bytes:
            encoded.append(frame)
            return encode(frame)

        monkeypatch.setattr(cluster_codec, "encode", counted)
        for order in (again(1), again(2)):
            for name in "abc":
                leader.send(name, JOB, order)
        for heard in (at_b, at_c):
            await heard.until(lambda heard=heard: len(heard.events) == 2)
            assert heard.orders() == [again(1), again(2)]
        assert len(encoded) == 2


async def test_a_node_whose_leader_takes_connections_and_says_nothing_ends_its_workers_in_time(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(leader_loss_detection, "FENCE_S", 1.0)
    monkeypatch.setattr(link_silence, "ALIVE_S", 0.1)
    monkeypatch.setattr(link_silence, "SILENCE_S", 0.3)
    monkeypatch.setattr(cluster_peers, "PARTING_S", 0.1)
    port = free_port()
    async with peers("a", port) as (_, at_leader), node_behind_gates(port) as (at_b, gates):
        await at_leader.until(lambda: at_leader.events)
        gates.to_leader = gates.to_node = anyio.Event()
        with anyio.fail_after(cluster_client.INTRODUCED_S / 2):
            await at_b.until(at_b.orders)
        assert isinstance(at_b.orders()[0], orders.StandBack)
        (waits,) = (each for each in at_b.orders() if isinstance(each, orders.StandBack))
        assert " is lost: " in waits.reason


async def test_a_node_comes_back_by_address_and_looks_up_the_name_but_once(monkeypatch: pytest.MonkeyPatch):
    port = free_port()
    hosts: list[str] = []

    async def connect(line: Callable[[], Line], host: str, port: int, *, is_careful: bool) -> None:
        """Knows one name that no name server knows."""
        del is_careful
        hosts.append(host)
        host = "127.0.0.1" if host == "leader.test" else host
        await asyncio.get_running_loop().create_connection(line, host, port)

    monkeypatch.setattr(cluster_peers, "PARTING_S", 0.1)
    wired = gated_wire(port)
    async with peers("a", port) as (leader, at_leader), wired as (wire, _), anyio.create_task_group() as tasks:
        heard = Heard()
        client = cluster_client.ClusterClient(
            PeerAddress("leader.test", wire), job_id=JOB, tls=TLS, own_name="b", on_order=heard.post,
            on_lost=lambda why: heard.events.append(Reported(JOB, NodeLost("leader", why))),
        )  # fmt: skip
        monkeypatch.setattr(cluster_connect, "connect", connect)
        tasks.start_soon(lambda: client.run(join_timeout_s=LIMIT_S))
        client.report(Reported(JOB, NodeJoined("b", -1)))
        await at_leader.until(lambda: at_leader.events)
        for number in range(3):
            line = client._conversation.line  # pyright: ignore[reportPrivateUsage]
            assert line is not None
            line.end("the test breaks it")
            client.report(Reported(JOB, NodeDown("b", number)))
            await at_leader.until(lambda number=number: len(at_leader.events) == number + 2)
        leader.send("b", JOB, again(1))
        await heard.until(lambda: heard.events)
        assert hosts == ["leader.test", "127.0.0.1", "127.0.0.1", "127.0.0.1"]
        tasks.cancel_scope.cancel()


async def test_a_dead_connection_is_noticed_in_time_for_another_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(link_silence, "SILENCE_S", 0.35)
    monkeypatch.setattr(link_silence, "ALIVE_S", 0.3)
    monkeypatch.setattr(cluster_peers, "PARTING_S", 0.1)
    port = free_port()
    async with peers("a", port) as (leader, at_leader), node_behind_gates(port) as (at_b, gates):
        await at_leader.until(lambda: at_leader.events)
        gates.to_leader = gates.to_node = anyio.Event()
        with anyio.fail_after(leader_loss_detection.FENCE_S):
            await gates.came_again.wait()
        gates.to_leader.set()
        gates.to_node.set()
        leader.send("b", JOB, again(1))
        await at_b.until(lambda: at_b.events)
        assert at_b.orders() == [again(1)]
