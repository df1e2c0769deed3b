"""How do thousands of nodes talk with their leader so cheaply that the measurement shows the leader's cost?

One thread and one epoll play all nodes. Each node has its own connection, TLS, numbers and heartbeats, as
decision 0019 has them; its reports are one sample with another name. A node's work for itself is left out: it checks
no fence and no silence. The nodes of a relay are channels of its downstream: messages between them and the relay are
left out too. The leader sees no difference.
"""

from __future__ import annotations

import json
import random
import struct
import time
from collections import deque
from collections.abc import Callable

from holdfast_wire.v1 import cluster_pb2

from supervisor.core.cluster.cluster_messages import Event, JobOpened, NodeFailed, NodeJoined, Reported
from supervisor.core.election.link_silence import ALIVE_S
from supervisor.core.facts import JobRules
from supervisor.edges.peers.codec import cluster_codec, heartbeats
from supervisor.edges.peers.handshake.hello_exchange import Who
from supervisor.edges.peers.relays.multiplexer import Kind
from supervisor.edges.peers.relays.relay import TICK_S
from supervisor.edges.peers.relays.relay_downstream import TICK
from supervisor.edges.peers.stream.cluster_client import PUT_OFF_S
from supervisor.edges.peers.transport.cluster_link import CONFIRM_S
from supervisor.edges.peers.transport.cluster_session import numbered, read_numbered
from supervisor.edges.peers.transport.cluster_tls import Tls
from supervisor.edges.peers.transport.preamble import AGAIN, IS_RELAY, MAY_BE_REDIRECTED, REDIRECTED
from tests.benchmarks.workloads.lean_wires import Talk, Wire, Wires, fail, framed

SAMPLE = "node-00000"  # the name of the first node; all names are as long
AT_ONCE = 256  # nodes between their first message and the leader's Welcome
RELAY_PORT = 20_000  # the first relay's port; to the player, the ports number the relays
TURN_S = 0.05  # at most, between two checks of what is due

_PART = struct.Struct(">BII")


class Node(Talk):
    def __init__(self, player: Player, number: int) -> None:
        self.name = f"node-{number:05}"
        super().__init__(Who(player.job_id, self.name, f"{random.getrandbits(64):016x}"))
        self.player = player
        self._bytes = self.name.encode()
        self._wire: Wire | None = None
        self._downstream: RelayDownstream | None = None
        self.channel = 0
        self._sent = 0
        self._received = 0
        self._told_received = 0

    def enter(self) -> None:
        self._wire = Wire(self.player.wires, self._first_word, kind=MAY_BE_REDIRECTED)

    def _first_word(self, data: bytes) -> None:
        if data.startswith(REDIRECTED) and not self.is_welcome and self._wire is not None:
            self._wire.end()
            self._wire = None
            self.player.redirect(self, json.loads(data[1:]))
        else:
            self.take(data)

    def enter_by(self, downstream: RelayDownstream, channel: int) -> None:
        self._downstream, self.channel = downstream, channel

    def write(self, data: bytes) -> None:
        if self._wire is not None:
            self._wire.write(data)
        elif self._downstream is not None:
            self._downstream.put(Kind.DATA, self.channel, data)

    def welcomed(self) -> None:
        self.player.under_way -= 1
        self.report(self.player.opened)
        self.report(self.player.joined)
        if self._downstream is None:
            self.player.beats_of(self)

    def report(self, sample: bytes) -> None:
        """Sends the sample report again, with this node's name."""
        self._sent += 1
        self._say(sample.replace(self.player.sample, self._bytes), self._sent)

    def beat(self) -> None:
        self._say(heartbeats.of_node(time.monotonic()), 0)

    def confirm(self) -> None:
        if self._told_received != self._received:
            self._say(b"", 0)

    def _say(self, payload: bytes, number: int) -> None:
        self._told_received = self._received
        self.write(framed(numbered(payload, number=number, received=self._received)))

    def hear(self, frame: bytes) -> None:
        payload, number, _ = read_numbered(frame)
        if not number:
            return
        if number != self._received + 1:
            fail(f"{self.name} has got message {number} after {self._received}")
        if self._told_received == self._received:
            self.player.confirm_later(self)
        self._received = number
        self.player.hear(self, payload)


class RelayDownstream(Talk):
    """The leader's side of one relay."""

    def __init__(self, player: Player, node: Node, port: int) -> None:
        super().__init__(node.who, relay_port=port)
        self._player = player
        self._port = port
        self._wire = Wire(player.wires, self.take, kind=IS_RELAY)
        self._nodes: list[Node] = []  # channel 1 is the first
        self._parts: list[bytes] = []
        self._tick = 0

    def write(self, data: bytes) -> None:
        self._wire.write(data)

    def welcomed(self) -> None:
        self._player.downstreams[self._port] = self

    def join(self, node: Node) -> None:
        self._nodes.append(node)
        node.enter_by(self, len(self._nodes))
        self.put(Kind.OPEN, node.channel, b"")

    def put(self, kind: Kind, channel: int, data: bytes) -> None:
        if not self._parts:
            self._player.flush_later(self)
        self._parts.append(_PART.pack(kind, channel, len(data)) + data)

    def flush(self) -> None:
        parts, self._parts = self._parts, []
        self.write(framed(b"".join(parts)))

    def tell(self) -> None:
        """Reports all nodes as heard."""
        self._tick += 1
        heard = [TICK.pack(each.channel) for each in self._nodes]
        self.put(Kind.BEAT, 0, b"".join([TICK.pack(self._tick), *heard]))

    def _node(self, channel: int) -> Node:
        return self._nodes[channel - 1]

    def hear(self, frame: bytes) -> None:
        at, end = 0, len(frame)
        while at < end:
            kind, channel, length = _PART.unpack_from(frame, at)
            at += _PART.size + length
            if kind == Kind.DATA:
                self._node(channel).take(frame[at - length : at])
            elif kind == Kind.CLOSE:
                fail("the leader has ended the connection of a node that comes by a relay")


class Player:
    """Plays all nodes. Its methods return when something has happened, and keep the nodes alive meanwhile."""

    def __init__(self, count: int, port: int, tls: Tls, *, job_id: str, rules: JobRules) -> None:
        self.job_id = job_id
        self.wires = Wires(port, tls)
        self.count = count
        self.sample = SAMPLE.encode()
        self.opened = self._encoded(JobOpened(SAMPLE, rules))
        self.joined = self._encoded(NodeJoined(SAMPLE, -1))
        self.nodes = [Node(self, number) for number in range(count)]
        self.downstreams: dict[int, RelayDownstream] = {}
        self._relays = 0
        self.under_way = 0
        self.cycle = -1
        self.told = self.started = 0  # nodes that know of the fault, or have the cycle
        self.told_s = self.started_s = 0.0
        self._put_off: deque[tuple[float, Node]] = deque()
        self._beats: deque[tuple[float, Node]] = deque()
        self._confirmations: deque[tuple[float, Node]] = deque()
        self._flushes: list[RelayDownstream] = []
        self._tick_s = 0.0

    def _encoded(self, report: Event) -> bytes:
        return cluster_codec.encode(Reported(self.job_id, report))

    # --- what is measured ------------------------------------------------------------------------------------------

    def start(self, limit_s: float) -> None:
        """Lets all nodes enter and start the first cycle."""
        waiting = iter(self.nodes)

        def all_have_started() -> bool:
            while self.under_way < AT_ONCE and (node := next(waiting, None)) is not None:
                self.under_way += 1
                node.enter()
            return self.started == self.count

        self._play(all_have_started, limit_s)

    def fault(self, limit_s: float) -> tuple[float, float]:
        """Ends a rank of one node; returns the seconds until all nodes know, and until all have the next cycle."""
        self.told = self.started = 0
        self.joined = self._encoded(NodeJoined(SAMPLE, self.cycle))
        failed = self._encoded(NodeFailed(SAMPLE, self.cycle, "rank 0 was killed by signal 9"))
        at_s = time.monotonic()
        self.nodes[0].report(failed)
        self._play(lambda: self.started == self.count, limit_s)
        return self.told_s - at_s, self.started_s - at_s

    def idle(self, duration_s: float) -> None:
        until_s = time.monotonic() + duration_s
        self._play(lambda: time.monotonic() >= until_s, duration_s + 1)

    def _play(self, is_over: Callable[[], bool], limit_s: float) -> None:
        until_s = time.monotonic() + limit_s
        while not is_over():
            self.wires.serve(self._look_s())
            self._pass_time()
            if time.monotonic() > until_s:
                fail(f"after {limit_s:g} s, {self.started} of {self.count} nodes have the cycle, {self.told} are told")

    def _look_s(self) -> float:
        now_s = time.monotonic()
        dues = [queue[0][0] for queue in (self._beats, self._confirmations, self._put_off) if queue]
        return max(0.0, min(TURN_S, min(dues, default=now_s + TURN_S) - now_s))

    def _pass_time(self) -> None:
        now_s = time.monotonic()
        while self._confirmations and self._confirmations[0][0] <= now_s:
            self._confirmations.popleft()[1].confirm()
        while self._beats and self._beats[0][0] <= now_s:
            due_s, node = self._beats.popleft()
            node.beat()
            self._beats.append((max(due_s + ALIVE_S, now_s), node))
        while self._put_off and self._put_off[0][0] <= now_s:
            self._put_off.popleft()[1].enter()
        if now_s >= self._tick_s:
            self._tick_s = now_s + TICK_S
            for downstream in self.downstreams.values():
                downstream.tell()
        flushes, self._flushes = self._flushes, []
        for downstream in flushes:
            downstream.flush()

    # --- what nodes ask of it --------------------------------------------------------------------------------------

    def hear(self, node: Node, payload: bytes) -> None:
        frame = cluster_pb2.ClusterFrame.FromString(payload)
        if frame.WhichOneof("body") == "serve_relay":
            RelayDownstream(self, node, RELAY_PORT + self._relays)
            self._relays += 1
            return
        match frame.ordered.order.WhichOneof("body"):
            case "join_again":
                self.told += 1
                if self.told == self.count:
                    self.told_s = time.monotonic()
                node.report(self.joined)
            case "start_cycle":
                self.cycle = frame.ordered.order.start_cycle.assignment.cycle
                self.started += 1
                if self.started == self.count:
                    self.started_s = time.monotonic()
            case other:
                fail(f"{node.name} is told {other}")

    def redirect(self, node: Node, place: list[str | int]) -> None:
        """Sends the node on to a relay, or tells it to come again."""
        # The leader may name a relay whose welcome has not been read here yet.
        if tuple(place) == AGAIN or int(place[1]) not in self.downstreams:
            self._put_off.append((time.monotonic() + PUT_OFF_S, node))
        else:
            self.downstreams[int(place[1])].join(node)

    def beats_of(self, node: Node) -> None:
        self._beats.append((time.monotonic() + ALIVE_S, node))

    def confirm_later(self, node: Node) -> None:
        self._confirmations.append((time.monotonic() + CONFIRM_S, node))

    def flush_later(self, downstream: RelayDownstream) -> None:
        self._flushes.append(downstream)
