"""How do torchrun's agents reach the leader of their rendezvous, and which of them leads it?

They use the same stream as the nodes of a job. The leader's own agent takes part like any other.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
import msgspec

from supervisor.core.cluster.cluster_messages import NodeHeard, NodeLost, NodeSilent, Reported
from supervisor.core.elastic import elastic_round
from supervisor.core.elastic.elastic_messages import AgentLost, DeadlineReached, ElasticOrder, ElasticReport, Event
from supervisor.edges.peers.codec.cluster_frames import ElasticOrdered, ElasticReported
from supervisor.edges.peers.stream.cluster_client import ClusterClient
from supervisor.edges.peers.stream.cluster_server import ClusterServer
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls
from supervisor.edges.peers.transport.leader_listener import listen

LOOK_S = 5.0

OnOrder = Callable[[ElasticOrder], None]

_log = logging.getLogger("holdfast.cluster")


class ElasticMeeting(msgspec.Struct, frozen=True):
    """Where the agents of a job meet, and this agent's part in it."""

    job_id: str
    node: str
    endpoint: PeerAddress
    leads: bool | None = None  # None: the first that can listen at the endpoint leads
    tls: Tls | None = None


class ElasticPeers(Protocol):
    """An agent's connection to the leader."""

    leads: bool

    @property
    def is_known(self) -> bool:
        """Returns whether a leader has accepted this agent."""
        ...

    def report(self, report: ElasticReport) -> None: ...

    async def until_all_is_heard(self) -> None: ...

    def forget(self) -> None:
        """Forgets unheard messages: nobody is left to hear them."""
        ...


class ElasticLeader:
    """Runs the rendezvous. Call its methods only in the event loop's thread."""

    leads = True
    is_known = True

    def __init__(self, meeting: ElasticMeeting, on_order: OnOrder) -> None:
        self._node = meeting.node
        self._on_order = on_order
        self._state = elastic_round.initial_state(anyio.current_time())
        self._events: deque[Event] = deque()
        self._is_stepping = False
        self._stepped = anyio.Event()
        self.server = ClusterServer(
            job_id=meeting.job_id,
            own_name=meeting.node,
            on_report=self._hear,
            on_elastic=lambda reported: self._take(reported.report),
            tls=meeting.tls,
        )

    def report(self, report: ElasticReport) -> None:
        self._take(report)

    async def until_all_is_heard(self) -> None:
        await self.server.until_all_is_heard()

    def forget(self) -> None:
        """Does nothing: a leader is not lost to itself."""

    async def keep_time(self, *, idle_s: float = math.inf) -> None:
        """Runs until cancelled, until nobody was there for `idle_s`, or until all have left after the end."""
        deserted_at_s = anyio.current_time() + idle_s
        while True:
            if self._state.known:
                deserted_at_s = math.inf
            elif deserted_at_s == math.inf:
                deserted_at_s = anyio.current_time() + idle_s
            is_over = not self._state.known and isinstance(self._state.phase, elastic_round.Closed)
            if idle_s < math.inf and (is_over or anyio.current_time() >= deserted_at_s):
                return
            deadline_s = elastic_round.next_deadline_s(self._state)
            self._stepped = anyio.Event()
            until_s = deserted_at_s if deadline_s is None else min(deadline_s, deserted_at_s)
            with anyio.CancelScope(deadline=until_s) as waited:
                await self._stepped.wait()
            if waited.cancelled_caught:
                self._take(DeadlineReached())

    def _hear(self, reported: Reported) -> None:
        match reported.report:
            case NodeLost(node, reason):
                self._take(AgentLost(node, reason))
            case NodeSilent() | NodeHeard():
                pass  # an agent counts until it is lost
            case other:
                _log.warning("a report is dropped, %s: this leads a rendezvous of torchrun", type(other).__name__)

    def _take(self, event: Event) -> None:
        """Handles events in order: a failure to send an order is itself an event, the loss of an agent."""
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                self._step(self._events.popleft())
        finally:
            self._is_stepping = False
        self._stepped.set()

    def _step(self, event: Event) -> None:
        self._state, actions = elastic_round.step(self._state, event, now_s=anyio.current_time())
        for action in actions:
            if action.node == self._node:
                self._on_order(action.order)
            else:
                self.server.send_frame(action.node, ElasticOrdered(action.order))


class ElasticFollower:
    """The peers of an agent if another one leads."""

    leads = False

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    @property
    def is_known(self) -> bool:
        return self._client.was_welcomed

    def report(self, report: ElasticReport) -> None:
        self._client.report(ElasticReported(report))

    async def until_all_is_heard(self) -> None:
        await self._client.until_all_is_heard()

    def forget(self) -> None:
        self._client.forget()


@asynccontextmanager
async def open_elastic(
    meeting: ElasticMeeting,
    *,
    on_order: OnOrder,
    on_lost: Callable[[str, bool], None],
    on_met: Callable[[int], None] = lambda _: None,
    look_s: float = LOOK_S,
) -> AsyncGenerator[ElasticPeers]:
    """Opens the peers. Calls `on_lost` once with the reason when there is no leader (any more), and with whether it
    refuses this agent permanently; `on_met` with the term of another agent that leads, each time it answers.

    An agent that finds no leader within `look_s` reports so, and may try to lead.
    """
    listener = None if meeting.leads is False else await listen(meeting.endpoint, everywhere=meeting.leads is True)
    async with anyio.create_task_group() as tasks:
        if listener is not None:
            leader = ElasticLeader(meeting, on_order)
            await tasks.start(leader.server.run, listener)
            tasks.start_soon(leader.keep_time)
            yield leader
        elif meeting.leads:
            on_lost(f"cannot listen at port {meeting.endpoint.port}: another process does", True)
            yield ElasticFollower(_client(meeting, on_order, on_lost, on_met))
        else:
            client = _client(meeting, on_order, on_lost, on_met)
            tasks.start_soon(lambda: client.run(join_timeout_s=look_s))
            yield ElasticFollower(client)
        tasks.cancel_scope.cancel()


def _client(
    meeting: ElasticMeeting,
    on_order: OnOrder,
    on_lost: Callable[[str, bool], None],
    on_met: Callable[[int], None],
) -> ClusterClient:
    client: ClusterClient = ClusterClient(
        meeting.endpoint,
        job_id=meeting.job_id,
        own_name=meeting.node,
        on_order=lambda ordered: _log.warning("an order for job %s is dropped: torchrun runs it", ordered.job_id),
        on_elastic=lambda ordered: on_order(ordered.order),
        on_lost=lambda why: on_lost(why, client.is_refused),
        on_fence=lambda _: on_met(client.term or 0),
        tls=meeting.tls,
    )
    return client
