"""Which nodes of a job are connected to its leader, and what do they report?

A node is one process: its incarnation. It may lose its connection and come back without any loss of messages. If it is
lost (core/election/node_loss_detection.py), it is lost permanently; a later process with its name is another node.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Sequence
from functools import partial

import anyio
from anyio.abc import TaskGroup, TaskStatus
from holdfast_wire.framing import FrameTooLongError

from supervisor.core.cluster.cluster_messages import Reported
from supervisor.core.cluster.relay_assignment import Relays
from supervisor.core.election import node_loss_detection
from supervisor.core.election.leader_heartbeats import LeaderHeartbeat
from supervisor.core.election.node_loss_detection import Link
from supervisor.core.node.node_messages import Ordered
from supervisor.core.orders import Order
from supervisor.core.session_state import JobSessions, SessionState
from supervisor.edges.peers.codec import cluster_codec, cluster_frames, heartbeats
from supervisor.edges.peers.codec.cluster_frames import (
    Answered,
    Aside,
    Asked,
    ClusterProtocolError,
    ElasticReported,
    Frame,
    Hello,
    ServeRelay,
    Unknown,
)
from supervisor.edges.peers.handshake import hello_exchange
from supervisor.edges.peers.handshake.acceptor import Acceptor
from supervisor.edges.peers.relays.relay_downstream import RelayDownstream
from supervisor.edges.peers.stream import known_node
from supervisor.edges.peers.stream.known_node import KnownNode
from supervisor.edges.peers.stream.session_store import SessionStore
from supervisor.edges.peers.transport import cluster_link, leader_listener, preamble
from supervisor.edges.peers.transport.cluster_line import INTRODUCTION_BYTES_MAX, Line, LinkLostError
from supervisor.edges.peers.transport.cluster_link import Conversation
from supervisor.edges.peers.transport.cluster_session import SessionError
from supervisor.edges.peers.transport.cluster_tls import LeadersTls, Tls, token_of
from supervisor.edges.peers.transport.cooperative_batches import BatchedCalls, DelayedCalls
from supervisor.edges.peers.transport.preamble import Place

GONE_MAX = 100_000  # incarnations that we remember
REPLACED = "another process has come in its place"
TERM_BITS = 62

_log = logging.getLogger("holdfast.cluster")


class ClusterServer:
    """Serves one job's nodes. Call its methods only in the event loop's thread."""

    def __init__(
        self,
        *,
        job_id: str,
        own_name: str,
        on_report: Callable[[Reported], None],
        on_aside: Callable[[str, Aside], None] = cluster_frames.nobody_hears,
        on_elastic: Callable[[ElasticReported], None] | None = None,
        on_parted: Callable[[str, str], None] | None = None,
        tls: Tls | None = None,
        term: int | None = None,
        fan_out: int = 0,
        nodes_max: int = 0,
        may_answer: Callable[[], bool] | None = None,
        on_confirmed: Callable[[str, LeaderHeartbeat], None] | None = None,
        session_store: SessionStore | None = None,
    ) -> None:
        """Creates the server. `term`: the lead that this node has won; None: the leader is not elected.

        `fan_out`: how many of the `nodes_max` others connect directly, not by relays; 0: all.

        `on_parted` gets the name of a node whose connection has ended, and why. `may_answer` is asked before every
        answer; None: always. `on_confirmed` gets what a node sends back of `beat`.
        """
        self._session_store = session_store or SessionStore()
        kept = self._session_store.kept or JobSessions()
        self._job_id = job_id
        self._own_name = own_name
        self._on_report = on_report
        self._on_aside = on_aside
        self._on_elastic = on_elastic
        self._on_parted = on_parted
        self._tls = LeadersTls(tls)
        if term is None and self._session_store.kept is None:
            # A node that knows an earlier process here must learn that this one has none of their messages.
            term = hello_exchange.TERM_BEFORE + 1 + secrets.randbits(TERM_BITS)
        self._term = term or kept.term or hello_exchange.TERM_BEFORE
        self._may_answer = may_answer
        self._on_confirmed = on_confirmed
        self._loop = asyncio.get_running_loop()  # asked for each of 10,000 nodes: anyio's own question costs far more
        self._nodes: dict[str, KnownNode] = {}
        self._tried_at_s: dict[str, float] = {}  # when each node last came, welcome or not
        self._kept = kept.nodes  # nodes that were connected to the previous supervisor
        self._gone = dict.fromkeys(kept.gone)  # abandoned incarnations, oldest first
        self._changed: dict[str, None] = {}  # nodes whose conversation is not as it was kept last
        self._links = node_loss_detection.initial_state(now_s=self._loop.time())
        self._waits_until_s = 0.0
        self._is_due_earlier = anyio.Event()
        self._encoded: tuple[Order | None, bytes] = (None, b"")  # the last order: many nodes may get the same
        self._relays = Relays(fan_out, nodes_max) if 0 < fan_out < nodes_max else None
        self._preamble_key = preamble.fresh_key() if tls is not None and not tls.token else b""
        self._unknown_told = False
        self._acceptor = Acceptor(
            self._serve, preamble_key=preamble.key_of(token_of(tls)) or self._preamble_key,
            has_token=bool(token_of(tls)),
            has_certificates=tls is not None,
            choose=self._choose_relay if self._relays is not None else None,
        )  # fmt: skip
        self._downstreams: dict[str, RelayDownstream] = {}
        self._turns = BatchedCalls()
        self._confirm_later = DelayedCalls(cluster_link.CONFIRM_S)
        self._tasks: TaskGroup | None = None

    async def run(
        self, listeners: Sequence[socket.socket], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves until cancelled; then closes the listeners and all connections."""
        self._links = node_loss_detection.initial_state(now_s=self._loop.time())
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._acceptor.run, listeners)
                self._tasks.start_soon(self._keep_time)
                for each in self._kept:
                    self._know(each.node, each.incarnation, each.letters)
                    self._decide(node_loss_detection.NodeKnown(each.node))
                task_status.started()
        finally:
            self._tls.close()
            for known in self._nodes.values():
                known.conversation.let_go("the leader ends", says_all=True)
            for downstream in list(self._downstreams.values()):
                downstream.end("the leader ends")

    def send(self, node: str, order: Order) -> None:
        """Keeps an order until the node has it. Drops it if the node is unknown (or no longer known)."""
        known = self._nodes.get(node)
        if known is None:
            return
        try:
            if self._encoded[0] is not order:
                self._encoded = order, cluster_codec.encode(Ordered(self._job_id, order))
            known.conversation.put(self._encoded[1])
            self._turns.soon(known.conversation.flush)
        except (SessionError, FrameTooLongError) as error:
            self._decide(node_loss_detection.NodeDropped(node, str(error)))

    def send_frame(self, node: str, frame: Frame) -> None:
        """Does the same for messages that are not about a job of this supervisor, not in order with the others."""
        known = self._nodes.get(node)
        if known is None:
            return
        try:
            known.conversation.say(cluster_codec.encode(frame))
        except (SessionError, FrameTooLongError) as error:
            self._decide(node_loss_detection.NodeDropped(node, str(error)))

    def say_aside(self, node: str, aside: Aside) -> bool:
        """Sends it once if the node is connected; it may be lost. Returns False if it certainly does not arrive."""
        known = self._nodes.get(node)
        return known is not None and known.conversation.say_aside(cluster_codec.encode(aside))

    def beat(self, node: str, heartbeat: LeaderHeartbeat) -> None:
        """Sends a heartbeat of the leader if the node is connected; the node sends it back."""
        if (known := self._nodes.get(node)) is not None:
            known.conversation.beat(heartbeats.of_leader(heartbeat))

    def heard_at_s(self, node: str) -> float | None:
        """Returns when a node was last heard; None: it is unknown."""
        known, tried_at_s = self._nodes.get(node), self._tried_at_s.get(node, 0.0)
        return max(known.conversation.last_heard_s if known is not None else 0.0, tried_at_s) or None

    def session_state(self, *, whole: bool = True) -> JobSessions:
        return known_node.session_state(self._nodes, self._gone, self._changed, term=self._term, whole=whole)

    async def until_all_is_heard(self) -> None:
        """Waits until every node has everything sent to it, or is lost. The job has ended."""
        if self._relays is not None:
            self._relays.end()
        await self._turns.until_empty()
        await known_node.until_all_is_heard(list(self._nodes.values()))

    async def until_all_have_left(self) -> None:
        """Waits until no node is connected. A node whose job has ended leaves once it has told its last news."""
        await known_node.until_all_have_left(list(self._nodes.values()))

    # --- connections -----------------------------------------------------------------------------------------------

    async def _serve(self, accepted: socket.socket) -> bool:
        """Does the handshake, and returns whether it succeeded. Everything after it needs no task."""
        line = Line(pipe=self._tls.pipe(), greeting=hello_exchange.greeting(), frame_bytes_max=INTRODUCTION_BYTES_MAX)
        why, is_held = "the leader ends", False
        try:
            with anyio.fail_after(cluster_link.HANDSHAKE_S):
                await leader_listener.hold_accepted(line, accepted)
                hello = self._greet(line, await line.receive())
            if hello.relay_port:
                self._begin_downstream(line, hello)
            else:
                self._hold(line, hello, is_direct=True)
            is_held = True
        except (LinkLostError, SessionError, ClusterProtocolError, TimeoutError, OSError) as error:
            why = str(error)
            level = logging.WARNING if line.distrust else logging.DEBUG
            _log.log(level, "a connection to the leader of job %s has ended: %s", self._job_id, why)
            if line.distrust:
                await self._tls.read_again()
        except Exception:  # noqa: BLE001 - the bulkhead: an error of one connection leaves the others alone
            _log.warning("a connection to the leader of job %s has met a defect", self._job_id, exc_info=True)
        finally:
            if not is_held:
                line.end(why, says_all=True)
        return is_held

    def _greet(self, line: Line, first: bytes) -> Hello:
        try:
            hello = hello_exchange.read(line, first)
            if refusal := self._refusal(hello):
                raise SessionError(refusal)
        except SessionError as error:
            hello_exchange.refuse(line, str(error))
            _log.warning("a node may not join job %s: %s", self._job_id, error)
            raise
        self._tried_at_s[hello.node] = self._loop.time()
        if self._may_answer is not None and not self._may_answer():
            raise SessionError("this leader does not know whether it still leads; the node tries again")
        hello_exchange.welcome(line, hello, term=self._term, preamble_key=self._preamble_key)
        return hello

    def _refusal(self, hello: Hello) -> str:
        """Returns why this node may not join; "" if it may."""
        if hello.job_id != self._job_id:
            return f"it wants job {hello.job_id}, and this is job {self._job_id}"
        if hello.incarnation in self._gone:
            return "it was silent for too long and has been given up; start it again"
        known = self._nodes.get(hello.node)
        if hello.relay_port:
            is_known = known is not None and known.incarnation == hello.incarnation and self._relays is not None
            return "" if is_known else "it is not a relay of this job"
        taken = hello.node == self._own_name or (
            known is not None and known.incarnation != hello.incarnation and known.conversation.line is not None
        )
        return f"another node of the job is called {hello.node}; give each a --local-addr of its own" if taken else ""

    def _hold(self, line: Line, hello: Hello, *, is_direct: bool) -> None:
        known = self._nodes.get(hello.node)
        if known is not None and known.incarnation != hello.incarnation:
            self._decide(node_loss_detection.NodeDropped(hello.node, REPLACED, comes_again=True))
            known = None
        known = known or self._know(hello.node, hello.incarnation, SessionState())
        self._count(known, is_direct=is_direct)
        self._decide(node_loss_detection.LinkUp(Link(hello.node)))
        known.conversation.hold(line, on_end=partial(self._miss, hello.node, known))
        if is_direct and self._relays is not None:
            self._relays.entered()
            if self._relays.is_needed(hello.node, self._loop.time()):
                self.send_frame(hello.node, ServeRelay())

    def _know(self, name: str, incarnation: str, session: SessionState) -> KnownNode:
        conversation = Conversation(
            on_message=partial(self._take, name), on_beat=partial(self._take_heartbeat, name),
            confirm_later=self._confirm_later, keep=self._session_store.keep, session=session,
            on_unkept=partial(self._changed.setdefault, name),
        )  # fmt: skip
        self._nodes[name], self._changed[name] = KnownNode(incarnation, conversation), None
        return self._nodes[name]

    # --- relays ----------------------------------------------------------------------------------------------------

    def _count(self, node: KnownNode, *, is_direct: bool) -> None:
        if self._relays is not None:
            self._relays.direct += is_direct - node.is_direct
        node.is_direct = is_direct

    def _choose_relay(self) -> Place | None:
        relay = self._relays.choose(self._loop.time()) if self._relays is not None else None
        return (relay.host, relay.port) if relay is not None else None

    def _begin_downstream(self, line: Line, hello: Hello) -> None:
        assert self._relays is not None
        if (before := self._downstreams.pop(hello.node, None)) is not None:
            before.end("another connection has come in its place")
        downstream = self._downstreams[hello.node] = RelayDownstream(
            line,
            make_line=self._make_channel_line,
            on_joined=partial(self._relays.joined, hello.node),
            on_left=partial(self._relays.left, hello.node),
            may_answer=self._may_answer,
            on_end=lambda why: self._end_downstream(hello.node, downstream, why),
        )
        self._relays.opened(hello.node, line.address("peername"), hello.relay_port)
        self._decide(node_loss_detection.LinkUp(Link(hello.node, is_relay=True)))

    def _end_downstream(self, node: str, downstream: RelayDownstream, why: str) -> None:
        _log.info("node %s is no longer a relay of job %s: %s", node, self._job_id, why)
        if self._downstreams.get(node) is downstream and self._relays is not None:
            del self._downstreams[node]
            self._relays.closed(node)
            self._decide(node_loss_detection.LinkLost(Link(node, is_relay=True), why, downstream.line.heard_at_s))

    def _make_channel_line(self) -> Line:
        """Makes the connection of a node that comes through a relay, before its first message."""
        line = Line(greeting=hello_exchange.greeting(), frame_bytes_max=INTRODUCTION_BYTES_MAX)

        def take_hello(first: bytes) -> None:
            hello = self._greet(line, first)
            if hello.relay_port:
                raise SessionError("a relay comes by another one")
            self._hold(line, hello, is_direct=False)

        line.listen(take_hello, lambda _: None, lambda: None)
        return line

    def _take(self, node: str, payload: bytes) -> None:
        match cluster_codec.decode(payload):
            case Reported(job_id, report) as reported if job_id == self._job_id:
                if self._speaks_for_itself(node, getattr(report, "node", node)):
                    self._on_report(reported)
            case Asked() | Answered() as aside if aside.job_id == self._job_id:
                self._on_aside(node, aside)
            case ElasticReported(report) as reported if self._on_elastic is not None:
                if self._speaks_for_itself(node, report.node):
                    self._on_elastic(reported)
            case Unknown():
                self._tell_unknown(node)
            case other:
                raise ClusterProtocolError(f"cannot take {type(other).__name__} from a node")

    def _tell_unknown(self, node: str) -> None:
        """Reports one node of a newer version: there may be thousands."""
        if not self._unknown_told:
            self._unknown_told = True
            why = f"skipped a message of node {node}, which is newer; install the same version on all nodes"
            _log.warning("job %s: %s", self._job_id, why)

    def _take_heartbeat(self, node: str, heartbeat: bytes) -> None:
        if (confirmed := heartbeats.leaders(heartbeat)) is not None:
            if self._on_confirmed is not None:
                self._on_confirmed(node, confirmed)
        elif self._may_answer is None or self._may_answer():
            self._nodes[node].conversation.beat(heartbeat)

    def _speaks_for_itself(self, node: str, speaks_for: str) -> bool:
        if speaks_for != node:
            _log.warning("a report of node %s is dropped: it comes from node %s", speaks_for, node)
        return speaks_for == node

    # --- silence ---------------------------------------------------------------------------------------------------

    def _miss(self, name: str, node: KnownNode, why: str) -> None:
        self._count(node, is_direct=False)
        if self._on_parted is not None:
            self._on_parted(name, f"its connection has ended: {why}")
        self._decide(node_loss_detection.LinkLost(Link(name), why, node.conversation.heard_at_s))

    async def _keep_time(self) -> None:
        while True:
            self._is_due_earlier = anyio.Event()
            self._waits_until_s = node_loss_detection.next_deadline_s(self._links)
            with anyio.CancelScope(deadline=self._waits_until_s) as waited:
                await self._is_due_earlier.wait()
            if waited.cancelled_caught:
                self._decide(node_loss_detection.DeadlineReached())

    def _decide(self, event: node_loss_detection.Event) -> None:
        self._links, actions = node_loss_detection.step(self._links, event, now_s=self._loop.time())
        for action in actions:
            match action:
                case node_loss_detection.AskHeard(link):
                    self._ask_heard(link)
                case node_loss_detection.EndLink(link, why):
                    self._end_link(link, why)
                case node_loss_detection.GiveUp(node):
                    self._give_up(node)
                case node_loss_detection.Report(report):
                    self._on_report(Reported(self._job_id, report))
        if node_loss_detection.next_deadline_s(self._links) < self._waits_until_s:
            self._is_due_earlier.set()

    def _ask_heard(self, link: Link) -> None:
        if link.is_relay:
            if (downstream := self._downstreams.get(link.node)) is not None:
                self._decide(node_loss_detection.Heard(link, downstream.line.heard_at_s))
        elif (known := self._nodes.get(link.node)) is not None:
            talk = known.conversation
            self._decide(node_loss_detection.Heard(link, talk.last_heard_s, talk.waits_since_s))

    def _end_link(self, link: Link, why: str) -> None:
        if link.is_relay:
            line = downstream.line if (downstream := self._downstreams.get(link.node)) is not None else None
        else:
            line = known.conversation.line if (known := self._nodes.get(link.node)) is not None else None
        if line is not None:
            line.end(why)

    def _give_up(self, name: str) -> None:
        node = self._nodes.pop(name)
        self._changed[name] = None
        self._tried_at_s.pop(name, None)
        self._gone[node.incarnation] = None
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
        self._count(node, is_direct=False)
        node.conversation.end()
