"""Which nodes of a job are connected to its leader, what do they report, and which of them is lost?

A node is one process: its incarnation. It may lose its connection and come back, and nothing is lost between; silent
for LOST_S, it is lost for good, and a process that comes later under its name is another node.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import anyio
from anyio.abc import Listener, SocketStream, TaskStatus
from holdfast_wire.framing import FrameTooLongError

from supervisor.core.cluster.messages import NodeLost, Reported
from supervisor.core.node.messages import Ordered
from supervisor.core.orders import Order
from supervisor.edges.peers import cluster_codec, cluster_frames, cluster_link, cluster_session
from supervisor.edges.peers.cluster_frames import (
    Alive,
    Answered,
    Aside,
    Asked,
    Challenge,
    ClusterProtocolError,
    Hello,
    Refusal,
    Unknown,
    Welcome,
)
from supervisor.edges.peers.cluster_link import Conversation, FrameStream, LinkLostError, PeerAddress
from supervisor.edges.peers.cluster_session import Keys, Seal, SessionError
from supervisor.pauses import pause

PROTOCOL_VERSION = 1
LOST_S = 5.0  # from the last word of a node; by then it has ended its own workers (cluster_client.FENCE_S)
HANDSHAKES_MAX = 256  # at once
ACCEPT_AGAIN_S = 0.2
TERM = 1  # one leader for the life of an embedded job

_log = logging.getLogger("holdfast.cluster")


class _Node:
    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.conversation = Conversation()
        self.connection: anyio.CancelScope | None = None  # of now


class ClusterServer:
    """Serves one job's nodes. Its methods are for the event loop's thread."""

    def __init__(
        self,
        *,
        job_id: str,
        token: bytes,
        own_name: str,
        on_report: Callable[[Reported], None],
        on_aside: Callable[[str, Aside], None] = cluster_frames.nobody_hears,
    ) -> None:
        self._job_id = job_id
        self._token = token
        self._own_name = own_name
        self._on_report = on_report
        self._on_aside = on_aside
        self._nodes: dict[str, _Node] = {}
        self._handshakes = anyio.Semaphore(HANDSHAKES_MAX)

    async def run(
        self, listener: Listener[SocketStream], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Until cancelled; closes the listener."""
        async with listener, anyio.create_task_group() as self._watch:
            task_status.started()
            while True:
                try:
                    await listener.serve(self._serve, self._watch)
                except OSError as error:
                    _log.warning("cannot take a node's connection: %s; the nodes try again", error.strerror)
                    await pause(ACCEPT_AGAIN_S, why="nothing tells when there are descriptors again")

    def send(self, node: str, order: Order) -> None:
        """Kept until the node has it. A node that is not known (any more) has no use for it."""
        known = self._nodes.get(node)
        if known is None:
            return
        try:
            known.conversation.say(cluster_codec.encode(Ordered(self._job_id, order)))
        except (SessionError, FrameTooLongError) as error:
            self._lose(node, known, str(error))

    def say_aside(self, node: str, aside: Aside) -> bool:
        """Once, if the node is connected; it may be lost. False: it certainly does not arrive."""
        known = self._nodes.get(node)
        if known is None or known.connection is None:
            return False
        return known.conversation.say_aside(cluster_codec.encode(aside))

    async def until_all_is_heard(self) -> None:
        """Returns once every node has all that was sent to it, or is lost."""
        for known in list(self._nodes.values()):
            await known.conversation.until_all_is_heard()

    # --- one connection --------------------------------------------------------------------------------------------

    async def _serve(self, stream: SocketStream) -> None:
        frames = FrameStream(stream)
        try:
            async with self._handshakes:
                with anyio.fail_after(cluster_link.HANDSHAKE_S):
                    hello, keys = await self._greet(frames)
            await self._hold(frames, hello, keys)
        except (LinkLostError, SessionError, ClusterProtocolError, TimeoutError) as error:
            _log.debug("a connection to the leader of job %s has ended: %s", self._job_id, error)
        except Exception:  # noqa: BLE001 - the bulkhead: whatever one connection meets, the others go on
            _log.warning("a connection to the leader of job %s has met a defect", self._job_id, exc_info=True)
        finally:
            await cluster_link.close(stream)

    async def _greet(self, frames: FrameStream) -> tuple[Hello, Keys]:
        nonce = cluster_session.fresh_nonce()
        await frames.send(cluster_codec.encode(Challenge(nonce)))
        hello = cluster_codec.decode(await frames.receive())
        if not isinstance(hello, Hello):
            raise ClusterProtocolError("cannot take a node in: it does not begin with a Hello")
        said = (nonce, hello.nonce, hello.job_id.encode(), hello.node.encode(), hello.incarnation.encode())
        if not cluster_session.is_proof(hello.proof, self._token, "node", *said):
            await frames.send(cluster_codec.encode(Refusal("it does not know the job's token")))
            raise SessionError("it does not know the job's token")
        if refusal := self._refusal(hello):
            await frames.send(cluster_codec.encode(Refusal(refusal)))
            _log.warning("a node may not join job %s: %s", self._job_id, refusal)
            raise SessionError(refusal)
        welcome = Welcome(cluster_session.proof(self._token, "leader", *said), TERM)
        await frames.send(cluster_codec.encode(welcome))
        return hello, cluster_session.derive_keys(self._token, nonce, hello.nonce)

    def _refusal(self, hello: Hello) -> str:
        """Why this one may not join; "" if it may."""
        if hello.job_id != self._job_id:
            return f"it wants job {hello.job_id}, and this is job {self._job_id}"
        if hello.protocol_version != PROTOCOL_VERSION:
            return f"it speaks version {hello.protocol_version} of the protocol, the leader version {PROTOCOL_VERSION}"
        known = self._nodes.get(hello.node)
        taken = hello.node == self._own_name or (
            known is not None and known.incarnation != hello.incarnation and known.connection is not None
        )
        return f"another node of the job is called {hello.node}; give each a --local-addr of its own" if taken else ""

    async def _hold(self, frames: FrameStream, hello: Hello, keys: Keys) -> None:
        known = self._nodes.get(hello.node)
        if known is not None and known.incarnation != hello.incarnation:
            self._lose(hello.node, known, "another process has come in its place")
            known = None
        if known is None:
            known = self._nodes[hello.node] = _Node(hello.incarnation)
        elif known.connection is not None:
            known.connection.cancel()  # Its end has not been noticed yet.

        def take(payload: bytes) -> None:
            self._take(hello.node, payload)

        why = "its connection was replaced"
        scope = known.connection = anyio.CancelScope()
        try:
            with scope:
                await known.conversation.hold(
                    frames, sends=Seal(keys.to_node), receives=Seal(keys.to_leader), on_message=take
                )
        except (LinkLostError, SessionError, ClusterProtocolError) as error:
            why = str(error)
            raise
        finally:
            if known.connection is scope:
                known.connection = None
                self._watch.start_soon(self._miss, hello.node, known, why)

    def _take(self, node: str, payload: bytes) -> None:
        match cluster_codec.decode(payload):
            case Reported(job_id, report) as reported if job_id == self._job_id:
                speaks_for = getattr(report, "node", node)
                if speaks_for == node:
                    self._on_report(reported)
                else:
                    _log.warning("a report of node %s is dropped: it comes from node %s", speaks_for, node)
            case Asked() | Answered() as aside if aside.job_id == self._job_id:
                self._on_aside(node, aside)
            case Alive() | Unknown():
                return
            case other:
                raise ClusterProtocolError(f"cannot take {type(other).__name__} from a node")

    async def _miss(self, name: str, node: _Node, why: str) -> None:
        await pause(node.conversation.heard_at_s + LOST_S - anyio.current_time(), why="it may come back until then")
        if node.connection is None and self._nodes.get(name) is node:
            self._lose(name, node, why)

    def _lose(self, name: str, node: _Node, why: str) -> None:
        del self._nodes[name]
        node.conversation.end()
        self._on_report(Reported(self._job_id, NodeLost(name, f"node {name} is lost: {why}")))


async def listen(address: PeerAddress) -> Listener[SocketStream] | None:
    """None where that address is not this node's, or another process leads there."""
    try:
        listener = await anyio.create_tcp_listener(local_host=address.host, local_port=address.port)
    except OSError as error:
        if {errno_of(each) for each in _causes(error)} & {errno.EADDRNOTAVAIL, errno.EADDRINUSE}:
            return None
        raise
    return listener.listeners[0]


def errno_of(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    each: BaseException | None = error
    while each is not None:
        found.append(each)
        each = each.__cause__
    return found
