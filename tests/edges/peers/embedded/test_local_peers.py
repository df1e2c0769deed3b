"""A message to this node comes back; another node is unknown."""

import pytest

from supervisor.core.cluster.cluster_messages import Reported, VerdictTaken
from supervisor.core.node.node_messages import Ordered
from supervisor.core.orders import WindDown
from supervisor.edges.peers.embedded.local_peers import LocalPeers
from supervisor.errors import NotNowError


def test_orders_and_reports_come_back_in_order() -> None:
    posted: list[Ordered | Reported] = []
    peers = LocalPeers(node_name="a", post=posted.append)
    peers.report("j", VerdictTaken("a"))
    peers.send("a", "j", WindDown("stopped by kim"))
    assert posted == [Reported("j", VerdictTaken("a")), Ordered("j", WindDown("stopped by kim"))]


def test_another_node_cannot_be_reached() -> None:
    posted: list[Ordered | Reported] = []
    with pytest.raises(NotNowError, match="cannot reach node b"):
        LocalPeers(node_name="a", post=posted.append).send("b", "j", WindDown("x"))
    assert posted == []
