"""A message to this node comes back, whatever the node was called when the job began."""

from supervisor.core.cluster.cluster_messages import Reported, VerdictTaken
from supervisor.core.node.node_messages import Ordered
from supervisor.core.orders import WindDown
from supervisor.edges.peers.embedded.local_peers import LocalPeers


def test_orders_and_reports_come_back_in_order() -> None:
    posted: list[Ordered | Reported] = []
    peers = LocalPeers(posted.append)
    peers.report("j", VerdictTaken("a"))
    peers.send("a", "j", WindDown("stopped by kim"))
    assert posted == [Reported("j", VerdictTaken("a")), Ordered("j", WindDown("stopped by kim"))]


def test_an_order_to_an_earlier_name_of_this_node_comes_back() -> None:
    posted: list[Ordered | Reported] = []
    LocalPeers(posted.append).send("b", "j", WindDown("x"))
    assert posted == [Ordered("j", WindDown("x"))]
