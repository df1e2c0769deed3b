"""How does the leader of a simulated job serve the other nodes, and when does it give one up?

core/election/node_loss_detection.py and core/cluster/relay_assignment.py decide, as in
edges/peers/stream/cluster_server.py. The machine knows only the links with which something is wrong: each of the others
was heard just now.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from supervisor.core.cluster.cluster_messages import NodeHeard, NodeLost, NodeSilent
from supervisor.core.cluster.relay_assignment import Relays
from supervisor.core.election import node_loss_detection
from supervisor.core.election.leader_heartbeats import LeaderHeartbeat
from supervisor.core.election.node_loss_detection import CHECK_S, Link
from supervisor.core.node.node_messages import Ordered
from supervisor.edges.peers.stream.cluster_server import REPLACED
from supervisor.programs.simulation.simulated_timeline import What
from tests.sim.following import CLOSED, Client, is_silence
from tests.sim.network import Line
from tests.sim.relaying import RelayDownstream

if TYPE_CHECKING:
    from tests.sim.host import Host


@dataclass(slots=True)
class _Known:
    """A process of a node."""

    client: Client
    line: Line | None = None
    is_direct: bool = False
    heard_at_s: float = 0.0  # on the leader's own clock
    arrived_s: float = 0.0  # its last message, in simulated time; see Stream

    @property
    def last_arrived_s(self) -> float:
        return max(self.arrived_s, self.client.up.arrived_s, self.line.up.arrived_s if self.line is not None else 0.0)


def _always() -> bool:
    return True


def _nobody_asks(host: Host) -> None:
    del host


def _nothing(*_: object) -> None:
    pass


class Server:
    """The leader's end of all its connections. `begin` it."""

    def __init__(
        self,
        leader: Host,
        *,
        on_report: Callable[[NodeSilent | NodeHeard | NodeLost], None],
        on_meeting: Callable[[Host], None] = _nobody_asks,
        may_answer: Callable[[], bool] = _always,
        is_well: Callable[[], bool] = _always,
        on_disturbed: Callable[[str], None] = _nothing,
        on_confirmed: Callable[[str, LeaderHeartbeat], None] = _nothing,
    ) -> None:
        """`is_well`: nothing is wrong with the lead itself. `on_disturbed`: something may be, with that node's link."""
        self._world = world = leader.world
        self.leader = leader
        self.is_open = False
        self._on_report = on_report
        self._on_meeting = on_meeting
        self._may_answer = may_answer
        self._is_well = is_well
        self.on_disturbed = on_disturbed
        self._on_confirmed = on_confirmed
        self._nodes: dict[str, _Known] = {}
        self._tried_at_s: dict[str, float] = {}  # when each node last came, welcome or not
        self._gone: set[Client] = set()
        self._links = node_loss_detection.initial_state(now_s=leader.now_s())
        self._rings_s = math.inf
        others, fan_out = len(world.setup.names) - 1, world.setup.fan_out
        self._relays = Relays(fan_out, others) if 0 < fan_out < others else None
        self._downstreams: dict[str, RelayDownstream] = {}
        self._by_port: list[RelayDownstream] = []

    def begin(self) -> None:
        self._links = node_loss_detection.initial_state(now_s=self.leader.now_s())
        self.is_open = True

    def close(self, why: str) -> None:
        """Ends all connections."""
        self.is_open = False
        self.disturb()
        for downstream in list(self._downstreams.values()):
            downstream.tell_relay(why)
        for known in self._nodes.values():
            if known.line is not None:
                self._leave(known.client, known.line, why)

    @property
    def is_well(self) -> bool:
        return self.is_open and self._is_well()

    @property
    def has_unheard(self) -> bool:
        return any(known.client.down.waiting for known in self._nodes.values())

    def holds(self, client: Client, line: Line) -> bool:
        """Returns whether this is the node's connection, as far as the leader knows."""
        known = self._nodes.get(client.node.name)
        return known is not None and known.client is client and known.line is line

    def heard_at_s(self, name: str) -> float | None:
        """Returns when a node was last heard; None: it is unknown."""
        known, tried_at_s = self._nodes.get(name), self._tried_at_s.get(name)
        moments_s = [each for each in (known and self._heard_at_s(known), tried_at_s) if each is not None]
        return max(moments_s, default=None)

    def _heard_at_s(self, known: _Known) -> float:
        if known.client.is_at_rest:
            return self.leader.now_s()
        return max(known.heard_at_s, known.line.leader_heard_at_s if known.line is not None else 0.0)

    def send(self, name: str, ordered: Ordered) -> None:
        """Gives a node an order, in order with the others. Drops it if the node is unknown."""
        if (known := self._nodes.get(name)) is not None:
            known.client.down.put(partial(known.client.take, partial(known.client.node.take, ordered)))

    def take(self, client: Client, what: What) -> None:
        """Takes a numbered message, unless its sender was given up meanwhile."""
        known = self._nodes.get(client.node.name)
        if known is not None and known.client is client and self.is_open:
            known.heard_at_s = self._note(client)
            what()

    def hear(self, client: Client, line: Line, said_at_s: float) -> None:
        """Hears the heartbeat that was sent then, and answers it."""
        line.leader_heard_at_s = self._note(client)
        if self.is_open and self.holds(client, line) and self._may_answer():
            line.down.put(partial(client.hear, line, said_at_s))

    def beat(self, name: str, heartbeat: LeaderHeartbeat) -> None:
        """Sends a heartbeat of the leader."""
        known = self._nodes.get(name)
        if known is not None and known.line is not None:
            known.line.down.put(partial(known.client.hear_leader, known.line, heartbeat))

    def hear_confirmed(self, client: Client, line: Line, heartbeat: LeaderHeartbeat) -> None:
        line.leader_heard_at_s = self._note(client)
        if self.is_open and self.holds(client, line):
            self._on_confirmed(client.node.name, heartbeat)

    def client_of(self, name: str) -> Client | None:
        known = self._nodes.get(name)
        return known.client if known is not None else None

    def _note(self, client: Client) -> float:
        """Notes that a node is heard now. Returns the time on the leader's own clock."""
        client.heard_s = self._world.timeline.now_s
        return self.leader.now_s()

    # --- connections

    def greet(self, client: Client, line: Line, *, may_be_sent_on: bool) -> None:
        if line.has_node_ended:
            return
        if not self.is_open:
            line.down.put(partial(client.miss, line, CLOSED), is_end=True)
            return
        relay = None
        if may_be_sent_on and self._relays is not None:
            if self.leader.verdict is not None:
                self._relays.end()
            relay = self._relays.choose(self.leader.now_s())
        line.down.put(partial(client.greeted, line, relay))

    def take_hello(self, client: Client, line: Line, said_at_s: float) -> None:
        if (
            line.has_node_ended
            or not self.is_open
            or (line.downstream is not None and line.downstream.has_leader_ended)
        ):
            return
        if refusal := self._refusal(client):
            line.down.put(partial(client.refused, line, refusal))
            return
        self._tried_at_s[client.node.name] = self._note(client)
        if not self._may_answer():
            why = "this leader does not know whether it still leads"
            line.down.put(partial(client.miss, line, why), is_end=True)
            return
        line.down.put(partial(client.welcomed, line, said_at_s))
        self._on_meeting(client.node)
        self._hold(client, line)

    def _refusal(self, client: Client) -> str:
        if client in self._gone:
            return "it was silent for too long and has been given up; start it again"
        is_taken = self.is_taken(client.node.name, client)
        return f"another node of the job is called {client.node.name}" if is_taken else ""

    def is_taken(self, name: str, client: Client | None = None) -> bool:
        """Returns whether another process of that name seems connected."""
        known = self._nodes.get(name)
        return name == self.leader.name or (known is not None and known.client is not client and known.line is not None)

    def _hold(self, client: Client, line: Line) -> None:
        name = client.node.name
        known = self._nodes.get(name)
        if known is not None and known.client is not client:
            self._decide(node_loss_detection.NodeDropped(name, REPLACED, comes_again=True))
            known = None
        if known is None:
            known = self._nodes[name] = _Known(client)
        elif known.line is not None:
            self._let_go(known, known.line)
        known.line, known.heard_at_s, line.leader_heard_at_s = line, self.leader.now_s(), self.leader.now_s()
        self._count(known, is_direct=line.downstream is None)
        if self._relays is not None:
            if line.downstream is not None:
                self._relays.joined(line.downstream.relay.name)
            else:
                self._relays.entered()
        self._decide(node_loss_detection.LinkUp(Link(name)))
        if line.downstream is None and self._relays is not None and self._relays.is_needed(name, self.leader.now_s()):
            client.down.put(partial(client.take, client.serve_relay))

    def miss(self, client: Client, line: Line, why: str) -> None:
        """Learns that a connection has ended."""
        known = self._nodes.get(client.node.name)
        if known is None or known.line is not line:
            self._has_ended(line)
            return
        client.disturb()
        self._let_go(known, line)
        self._decide(node_loss_detection.LinkLost(Link(client.node.name), why, known.heard_at_s))

    def _leave(self, client: Client, line: Line, why: str) -> None:
        """Ends a connection, and tells the node if that arrives."""
        if not self.leader.is_dead:
            line.down.put(partial(client.miss, line, CLOSED), is_end=True)
        self.miss(client, line, why)

    def _let_go(self, known: _Known, line: Line) -> None:
        known.heard_at_s, known.arrived_s = self._heard_at_s(known), known.last_arrived_s
        known.line = None
        self._has_ended(line)
        line.up.end()
        known.client.up.stop()
        known.client.down.stop()
        self._count(known, is_direct=False)
        if line.downstream is not None and self._relays is not None:
            self._relays.left(line.downstream.relay.name)

    def _has_ended(self, line: Line) -> None:
        line.has_leader_ended = True
        if line.downstream is not None:
            line.downstream.forget(line)

    def _count(self, known: _Known, *, is_direct: bool) -> None:
        if self._relays is not None:
            self._relays.direct += is_direct - known.is_direct
        known.is_direct = is_direct

    # --- relays

    def downstream_at(self, port: int) -> RelayDownstream | None:
        return self._by_port[port] if port < len(self._by_port) else None

    def begin_downstream(self, client: Client) -> RelayDownstream | None:
        """Takes a relay. Returns None if it is not one of this job."""
        name = client.node.name
        known = self._nodes.get(name)
        if known is None or known.client is not client or self._relays is None:
            return None
        if name in self._downstreams:
            self.end_downstream(self._downstreams[name], "another connection has come in its place")
        downstream = self._downstreams[name] = RelayDownstream(client.node, self, may_answer=self._may_answer)
        self._relays.opened(name, name, len(self._by_port))
        self._by_port.append(downstream)
        self._decide(node_loss_detection.LinkUp(Link(name, is_relay=True)))
        downstream.begin()
        return downstream

    def end_downstream(self, downstream: RelayDownstream, why: str) -> None:
        """Learns that a relay is lost, and with it the connections that it carries; or ends it."""
        name = downstream.relay.name
        if self._downstreams.get(name) is not downstream or self._relays is None:
            return
        downstream.disturb()
        downstream.has_leader_ended = True
        for line, client in list(downstream.lines.items()):
            self.miss(client, line, f"its relay is lost: {why}")
        del self._downstreams[name]
        self._relays.closed(name)
        self._decide(node_loss_detection.LinkLost(Link(name, is_relay=True), why, downstream.leader_heard_at_s))

    # --- silence

    def _decide(self, event: node_loss_detection.Event) -> None:
        now_s = self.leader.now_s()
        if not self._links.links:
            self._begin_again(now_s)
        self._links, actions = node_loss_detection.step(self._links, event, now_s=now_s)
        for action in actions:
            match action:
                case node_loss_detection.AskHeard(link):
                    self._ask_heard(link)
                case node_loss_detection.EndLink(link, why):
                    self._end_link(link, why)
                case node_loss_detection.GiveUp(node):
                    if isinstance(event, node_loss_detection.DeadlineReached):
                        self._world.note_silence(self.leader, self._nodes[node].last_arrived_s, is_loss=True)
                    self._give_up(node)
                case node_loss_detection.Report(report):
                    self._on_report(report)
        self._plan()

    def _begin_again(self, now_s: float) -> None:
        """Goes on after a time in which nothing was wrong, and no deadline was played."""
        self._links.checks.clear()
        self._links.silences.clear()
        checks_at_s = now_s + self._world.random.random() * CHECK_S
        self._links = msgspec.structs.replace(self._links, checks_at_s=checks_at_s)

    def _plan(self) -> None:
        due_s = node_loss_detection.next_deadline_s(self._links)
        if self._links.links and due_s < self._rings_s and self.is_open:
            self._rings_s = due_s
            self.leader.ring_at(due_s, partial(self._ring, due_s))

    def _ring(self, due_s: float) -> None:
        if self._rings_s == due_s:
            self._rings_s = math.inf
            if self.is_open and self._links.links:
                self._decide(node_loss_detection.DeadlineReached())

    def _ask_heard(self, link: Link) -> None:
        if link.is_relay:
            if (downstream := self._downstreams.get(link.node)) is not None:
                self._decide(node_loss_detection.Heard(link, downstream.leader_heard_at_s))
        elif (known := self._nodes.get(link.node)) is not None:
            self._decide(node_loss_detection.Heard(link, self._heard_at_s(known)))

    def _end_link(self, link: Link, why: str) -> None:
        if link.is_relay:
            if (downstream := self._downstreams.get(link.node)) is not None:
                downstream.tell_relay(why)
        elif (known := self._nodes.get(link.node)) is not None and known.line is not None:
            if is_silence(why):
                self._world.note_silence(self.leader, known.last_arrived_s)
            self._leave(known.client, known.line, why)

    def _give_up(self, name: str) -> None:
        known = self._nodes.pop(name)
        self._tried_at_s.pop(name, None)
        self._gone.add(known.client)
        self._world.note_loss(known.client.node)
        known.client.disturb()
        if (line := known.line) is not None:
            line.down.put(partial(known.client.miss, line, CLOSED), is_end=True)
            self._let_go(known, line)
        known.client.down.end()

    # --- rest

    def rest(self, client: Client) -> None:
        self._links.links.pop(Link(client.node.name), None)

    def wake(self, client: Client, line: Line, heard_at_s: float) -> None:
        """Watches this link from now on. `heard_at_s`: when it was heard, in simulated time."""
        line.leader_heard_at_s = max(line.leader_heard_at_s, self.leader.local_s(heard_at_s))
        line.up.arrived_s = client.heard_s = max(line.up.arrived_s, heard_at_s)
        known = self._nodes[client.node.name]
        self._watch(Link(client.node.name), max(known.heard_at_s, line.leader_heard_at_s))

    def rest_downstream(self, downstream: RelayDownstream) -> None:
        self._links.links.pop(Link(downstream.relay.name, is_relay=True), None)

    def wake_downstream(self, downstream: RelayDownstream) -> None:
        self._watch(Link(downstream.relay.name, is_relay=True), downstream.leader_heard_at_s)

    def _watch(self, link: Link, heard_at_s: float) -> None:
        if self.is_open and not self.leader.is_dead:
            self._decide(node_loss_detection.LinkUp(link))
            self._decide(node_loss_detection.Heard(link, heard_at_s))

    def disturb(self) -> None:
        """Plays all heartbeats from now on: something is wrong with the leader."""
        for downstream in list(self._downstreams.values()):
            downstream.disturb()
        for known in list(self._nodes.values()):
            known.client.disturb()
