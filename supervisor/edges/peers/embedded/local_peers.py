"""How do orders and reports travel if this is the only node of a job?"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.core.cluster.cluster_messages import Event as Report
from supervisor.core.cluster.cluster_messages import Reported
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node.node_messages import Ordered
from supervisor.core.orders import Order
from supervisor.errors import NoAnswerError
from supervisor.ports.questions import Answer, Question


class NoNodeRequests:
    """NodeRequests of a job on one node: there are none. See questions.NodeRequests."""

    def leads(self, job_id: str) -> bool:
        del job_id
        return True

    def outage(self, job_id: str) -> str:
        del job_id
        return ""

    async def ask(self, job_id: str, to: str, question: Question, *, timeout_s: float) -> Answer:
        del job_id, question, timeout_s
        raise NoAnswerError(f"cannot ask node {to}: this supervisor's jobs run on this node alone")


class LocalPeers:
    """Peers of a job on one node; see ports.Peers. Each message comes back as an event.

    Each is to this node, even if it names another: the job knows the name that the node had when the job began.
    """

    def __init__(self, post: Callable[[Ordered | Reported], None]) -> None:
        self._post = post
        self.node_requests = NoNodeRequests()

    def leads(self, job_id: str) -> bool:
        del job_id
        return True

    def send(self, node: str, job_id: str, order: Order) -> None:
        del node
        self._post(Ordered(job_id, order))

    def report(self, job_id: str, report: Report) -> None:
        self._post(Reported(job_id, report))

    def record(self, job_id: str, ledger: Ledger) -> None:
        """Does nothing: no other node leads after this one."""
