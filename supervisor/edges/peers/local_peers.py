"""How do orders and reports travel if this is the only node of a job?"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.core.cluster.messages import Event as Report
from supervisor.core.cluster.messages import Reported
from supervisor.core.node.messages import Ordered
from supervisor.core.orders import Order
from supervisor.errors import NotNowError


class LocalPeers:
    """See ports.Peers. What is sent to this node comes back as an event, as it would from another."""

    leads = True

    def __init__(self, *, node_name: str, post: Callable[[Ordered | Reported], None]) -> None:
        self._node_name = node_name
        self._post = post

    def send(self, node: str, job_id: str, order: Order) -> None:
        if node != self._node_name:
            raise NotNowError(f"cannot reach node {node}: this supervisor knows {self._node_name} only")
        self._post(Ordered(job_id, order))

    def report(self, job_id: str, report: Report) -> None:
        self._post(Reported(job_id, report))
