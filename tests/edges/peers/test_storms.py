"""Hundreds of nodes that connect, or lose their connections, at once are all admitted; none is given up."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from supervisor.core.cluster.cluster_messages import NodeJoined, NodeLost, Reported
from supervisor.core.election import leader_loss_detection, node_loss_detection
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.embedded.cluster_peers import Meeting
from supervisor.edges.peers.stream.cluster_client import ClusterClient
from supervisor.edges.peers.transport import cluster_tls
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls
from tests.edges.peers.certificates import make_authority, make_node
from tests.edges.peers.embedded.test_cluster_peers import JOB, Heard, again, free_port

LIMIT_S = 60.0
NODES = 120
CALM = 20  # of them keep their connections


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """Nodes with their own connections, in this process."""

    def __init__(self, port: int, tls: Tls) -> None:
        self.told = Heard()
        self.lost: list[str] = []
        self.clients = [self._client(f"node-{number}", port, tls) for number in range(NODES)]

    def _client(self, name: str, port: int, tls: Tls) -> ClusterClient:
        return ClusterClient(
            PeerAddress("127.0.0.1", port), job_id=JOB, own_name=name, on_order=self.told.post,
            on_lost=self.lost.append, tls=tls,
        )  # fmt: skip

    def join(self, number: int) -> None:
        """Sends a message that must arrive, whatever happens to the connections."""
        for place, client in enumerate(self.clients):
            client.report(Reported(JOB, NodeJoined(f"node-{place}", number)))

    def tear(self) -> None:
        for client in self.clients[CALM:]:
            line = client._conversation.line  # pyright: ignore[reportPrivateUsage]
            assert line is not None
            line.end("the test breaks it")


async def test_d12_all_nodes_reconnect_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        leader_loss_detection, "FENCE_S", 20.0
    )  # all nodes share one busy core here, unlike in a cluster
    monkeypatch.setattr(node_loss_detection, "LOST_S", 25.0)
    make_authority(tmp_path)
    tls = cluster_tls.load(make_node(tmp_path))
    port, at_leader = free_port(), Heard()
    meeting = Meeting(JOB, "a", PeerAddress("127.0.0.1", port), LIMIT_S, tls=tls)
    async with cluster_peers.open_peers(meeting, at_leader.post) as leader, anyio.create_task_group() as tasks:
        crowd = Crowd(port, tls)
        for client in crowd.clients:
            tasks.start_soon(lambda client=client: client.run(join_timeout_s=LIMIT_S))
        for storm in range(3):
            crowd.join(storm)
            await at_leader.until(lambda storm=storm: len(at_leader.events) == (storm + 1) * NODES)
            for place in range(NODES):
                leader.send(f"node-{place}", JOB, again(storm))
            await crowd.told.until(lambda storm=storm: len(crowd.told.events) == (storm + 1) * NODES)
            crowd.tear()
        assert crowd.lost == []
        assert not [each for each in at_leader.reports() if isinstance(each, NodeLost)]
        assert tls.leads.session_stats()["hits"] == 2 * (NODES - CALM)
        for client in crowd.clients:
            client.forget()
        tasks.cancel_scope.cancel()
