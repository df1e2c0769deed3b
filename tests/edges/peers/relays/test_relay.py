"""Nodes reach their leader through relays: all messages arrive once and in order, and a lost relay harms nobody."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from supervisor.core.cluster.cluster_messages import NodeDown, NodeJoined, NodeLost, Reported
from supervisor.core.election import leader_loss_detection, link_silence, node_loss_detection
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import LeaderPeers, Meeting
from supervisor.edges.peers.stream import cluster_server
from supervisor.edges.peers.stream.cluster_client import ClusterClient
from supervisor.edges.peers.transport import cluster_tls
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls
from tests.edges.peers.certificates import make_authority, make_node
from tests.edges.peers.embedded.test_cluster_peers import JOB, LIMIT_S, TLS, TOKEN, Heard, again, free_port

NODES = 12
FAN_OUT = 3


class Crowd:
    """A leader, and nodes of which most use relays; all of them in this process."""

    def __init__(self, leader: LeaderPeers, at_leader: Heard) -> None:
        self.leader = leader
        self.at_leader = at_leader
        self.heard = {f"node-{number}": Heard() for number in range(NODES)}
        self.clients: dict[str, ClusterClient] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}
        self.lost: list[str] = []

    @property
    def server(self) -> cluster_server.ClusterServer:
        return self.leader._server  # pyright: ignore[reportPrivateUsage]

    def relays(self) -> dict[str, int]:
        """Returns the relays, with the number of nodes of each."""
        downstreams = self.server._downstreams  # pyright: ignore[reportPrivateUsage]
        return {name: len(downstream._lines) for name, downstream in downstreams.items()}  # pyright: ignore[reportPrivateUsage]

    def direct(self) -> set[str]:
        nodes = self.server._nodes  # pyright: ignore[reportPrivateUsage]
        return {name for name, node in nodes.items() if node.is_direct}

    async def run(self, name: str) -> None:
        with anyio.CancelScope() as self.scopes[name]:
            await self.clients[name].run(join_timeout_s=LIMIT_S)

    async def all_hear(self, number: int, names: set[str]) -> None:
        """Exchanges a message each way with each of them."""
        before = len(self.at_leader.events)
        for name in names:
            self.clients[name].report(Reported(JOB, NodeDown(name, number)))
        await self.at_leader.until(lambda: len(self.at_leader.events) >= before + len(names))
        assert set(self.at_leader.reports()[before:]) == {NodeDown(name, number) for name in names}
        for name in names:
            self.leader.send(name, JOB, again(number))
        for name in names:
            heard = self.heard[name]
            await heard.until(lambda heard=heard: heard.orders() and heard.orders()[-1] == again(number))
            assert heard.orders().count(again(number)) == 1


@asynccontextmanager
async def crowd(tls: Tls | None = TLS, *, at_once: bool = False) -> AsyncGenerator[Crowd]:
    """`at_once`: together, instead of one by one with relays ready for them."""
    port, at_leader = free_port(), Heard()
    endpoint = PeerAddress("127.0.0.1", port)
    meeting = Meeting(JOB, "a", endpoint, LIMIT_S, tls=tls, fan_out=FAN_OUT, nodes_max=NODES)
    async with cluster_peers.open_peers(meeting, at_leader.post) as leader, anyio.create_task_group() as tasks:
        assert isinstance(leader, LeaderPeers)
        crowd = Crowd(leader, at_leader)
        for name, heard in crowd.heard.items():
            crowd.clients[name] = ClusterClient(
                endpoint, job_id=JOB, own_name=name, on_order=heard.post, on_lost=crowd.lost.append,
                tls=tls,
            )  # fmt: skip
            tasks.start_soon(crowd.run, name)
            crowd.clients[name].report(Reported(JOB, NodeJoined(name, -1)))
            if at_once:
                continue
            joined = NodeJoined(name, -1)
            await at_leader.until(lambda joined=joined: at_leader.events and at_leader.reports()[-1] == joined)
            with anyio.fail_after(LIMIT_S):
                while len(crowd.relays()) < min(FAN_OUT, len(crowd.clients)):
                    await anyio.lowlevel.checkpoint()
        await at_leader.until(lambda: len(at_leader.events) >= NODES)
        yield crowd
        for client in crowd.clients.values():
            client.forget()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("has_files", "token"), [(False, TOKEN), (True, TOKEN), (True, b""), (False, b"")])
async def test_all_that_is_said_by_relays_arrives_once_and_in_order(has_files: bool, token: bytes, tmp_path: Path):
    tls = cluster_tls.from_token(token) if token else None
    if has_files:
        make_authority(tmp_path)
        tls = msgspec.structs.replace(cluster_tls.load(make_node(tmp_path)), token=token)
    async with crowd(tls) as nodes:
        assert nodes.relays() == {f"node-{number}": FAN_OUT for number in range(FAN_OUT)}
        assert nodes.direct() == {"node-0", "node-1", "node-2"}
        for number in range(3):
            await nodes.all_hear(number, set(nodes.clients))
        for number in range(200):
            nodes.leader.send("node-11", JOB, again(number + 10))
        heard = nodes.heard["node-11"]
        await heard.until(lambda: len(heard.events) == 203)
        assert heard.orders()[3:] == [again(number + 10) for number in range(200)]


async def test_nodes_that_come_at_once_wait_for_the_relays():
    async with crowd(at_once=True) as nodes:
        assert len(nodes.direct()) == FAN_OUT
        assert sum(nodes.relays().values()) == NODES - FAN_OUT
        await nodes.all_hear(1, set(nodes.clients))


@pytest.mark.alone
async def test_heartbeats_by_a_relay_keep_both_sides_sure_of_each_other(monkeypatch: pytest.MonkeyPatch):
    """For longer than a silence that would end a connection."""
    monkeypatch.setattr(link_silence, "SILENCE_S", 1.5)
    monkeypatch.setattr(leader_loss_detection, "FENCE_S", 2.0)
    monkeypatch.setattr(node_loss_detection, "LOST_S", 2.5)
    monkeypatch.setattr(node_loss_detection, "CHECK_S", 0.1)
    monkeypatch.setattr(link_silence, "ALIVE_S", 0.1)
    monkeypatch.setattr("supervisor.edges.peers.relays.relay.TICK_S", 0.1)
    async with crowd() as nodes:
        known = {name: client.known_at_s for name, client in nodes.clients.items()}
        lines = {name: client._conversation.line for name, client in nodes.clients.items()}  # pyright: ignore
        await anyio.sleep(3.5)
        for name, client in nodes.clients.items():
            before_s, now_s = known[name], client.known_at_s
            assert before_s is not None
            assert now_s is not None
            assert now_s - before_s > 1.0
        assert nodes.lost == []
        assert {name: client._conversation.line for name, client in nodes.clients.items()} == lines  # pyright: ignore
        assert not [each for each in nodes.at_leader.reports() if isinstance(each, NodeLost)]


async def test_d11_the_nodes_of_a_lost_relay_come_back_and_nobody_else_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node_loss_detection, "LOST_S", 3.0)
    async with crowd() as nodes:
        others = set(nodes.clients) - {"node-0"}
        nodes.scopes["node-0"].cancel()
        with anyio.fail_after(2.0):
            await nodes.all_hear(7, others)
        assert set(nodes.relays()) >= {"node-1", "node-2"}
        reports = nodes.at_leader.reports
        await nodes.at_leader.until(lambda: any(isinstance(each, NodeLost) for each in reports()))
        assert [each.node for each in reports() if isinstance(each, NodeLost)] == ["node-0"]
        await nodes.all_hear(8, others)
        assert nodes.lost == []


async def test_d11_nodes_that_only_their_relay_was_heard_of_for_long_are_not_given_up_with_it(
    monkeypatch: pytest.MonkeyPatch,
):
    """Heartbeats end at the relay: its word counts, too."""
    monkeypatch.setattr(node_loss_detection, "LOST_S", 1.5)
    monkeypatch.setattr(link_silence, "ALIVE_S", 0.1)
    monkeypatch.setattr("supervisor.edges.peers.relays.relay.TICK_S", 0.1)
    async with crowd() as nodes:
        await anyio.sleep(2.5)  # longer than the silence that loses a node
        nodes.scopes["node-0"].cancel()
        reports = nodes.at_leader.reports
        await nodes.at_leader.until(lambda: any(isinstance(each, NodeLost) for each in reports()))
        await nodes.all_hear(8, set(nodes.clients) - {"node-0"})
        assert [each.node for each in reports() if isinstance(each, NodeLost)] == ["node-0"]
        assert nodes.lost == []


async def test_d11_a_node_whose_relay_says_nothing_goes_to_the_leader_itself():
    async with crowd() as nodes:
        for name, silent_s in (("node-10", 0.0), ("node-11", 2 * link_silence.SILENCE_S)):
            line = nodes.clients[name]._conversation.line  # pyright: ignore[reportPrivateUsage]
            assert line is not None
            line.heard_at_s -= silent_s
            line.end("the test ends it")
            await nodes.all_hear(1 if silent_s else 2, {name})
        assert nodes.direct() == {"node-0", "node-1", "node-2", "node-11"}


async def test_a_relay_that_cannot_be_reached_costs_its_nodes_one_attempt(monkeypatch: pytest.MonkeyPatch):
    """The same as if the address means another node, or a firewall is in between."""
    choose = cluster_server.ClusterServer._choose_relay  # pyright: ignore[reportPrivateUsage]
    with_nobody = free_port()

    def misled(server: cluster_server.ClusterServer) -> tuple[str, int] | None:
        return ("127.0.0.1", with_nobody) if choose(server) is not None else None

    monkeypatch.setattr(cluster_server.ClusterServer, "_choose_relay", misled)
    async with crowd() as nodes:
        assert nodes.direct() == set(nodes.clients)
        await nodes.all_hear(1, set(nodes.clients))
