"""How do a job's orders and reports travel between its leader and its other nodes?"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from supervisor.config.job_spec import KEPT_NODES_MAX, JobSpec, Nodes
from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import Event as Report
from supervisor.core.cluster.cluster_messages import Reported
from supervisor.core.election import follower
from supervisor.core.fence_times import FENCE_S
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node.node_messages import FenceMoved, Ordered
from supervisor.core.session_state import JobSessions
from supervisor.edges.machine.gpus import nvlink_domain
from supervisor.edges.machine.own_process.threads import in_thread
from supervisor.edges.peers.handshake import job_secrets
from supervisor.edges.peers.questions.request_router import CLOSED, RequestRouter, refuse
from supervisor.edges.peers.stream.cluster_client import SPAWNER_LATER_S, ClusterClient
from supervisor.edges.peers.stream.cluster_server import ClusterServer
from supervisor.edges.peers.stream.session_store import JobPeers, SessionStore
from supervisor.edges.peers.transport import gc_tuning
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.cluster_tls import Tls, TlsFiles
from supervisor.edges.peers.transport.leader_listener import listen
from supervisor.edges.peers.transport.own_address import own_address
from supervisor.errors import ConfigurationError, NotNowError
from supervisor.ports.edges import Post
from supervisor.ports.questions import TakeQuestion

MASTER_ADDR_DEFAULT = JobSpec("", ()).master_addr
PARTING_S = 5.0  # for messages that the other nodes have not heard when this one ends


class Meeting(msgspec.Struct, frozen=True):
    """Where the nodes of a job meet, and this node's part in it."""

    job_id: str
    node: str
    endpoint: PeerAddress
    join_timeout_s: float
    tls: Tls | None = None
    on_orphaned: Callable[[str], None] | None = None  # called when no leader is left; None: the workers are ended
    fan_out: int = 0  # how many other nodes connect to the leader directly; 0: all
    nodes_max: int = 0  # counts the other nodes


class LeaderPeers:
    """Peers of the node that runs the job's coordinator; see ports.Peers."""

    def __init__(self, meeting: Meeting, server: ClusterServer, post: Post, node_requests: RequestRouter) -> None:
        self._node = meeting.node
        self._server = server
        self._post = post
        self.node_requests = node_requests

    def leads(self, job_id: str) -> bool:
        del job_id
        return True

    def send(self, node: str, job_id: str, order: orders.Order) -> None:
        if node == self._node:
            self._post(Ordered(job_id, order))
        else:
            self._server.send(node, order)

    def report(self, job_id: str, report: Report) -> None:
        self._post(Reported(job_id, report))

    def record(self, job_id: str, ledger: Ledger) -> None:
        """Does nothing: no other node leads after this one."""

    def session_state(self, *, whole: bool = True) -> JobSessions:
        return self._server.session_state(whole=whole)

    async def until_all_have_left(self) -> None:
        await self._server.until_all_is_heard()
        await self._server.until_all_have_left()


class FollowerPeers:
    """Peers of a node if another one runs the coordinator; see ports.Peers. `run` stays in touch with it."""

    def __init__(
        self,
        meeting: Meeting,
        post: Post,
        session_store: SessionStore | None = None,
        *,
        take_question: TakeQuestion = refuse,
    ) -> None:
        self._meeting = meeting
        self._post = post
        self._session_store = session_store or SessionStore()
        kept = self._session_store.kept
        self.node_requests = RequestRouter(
            own_name=meeting.node,
            leads=False,
            take_question=take_question,
            pass_on=lambda _, aside: self._client.say_aside(aside),
        )
        self._client = self._new_client(kept)
        self._state = follower.State(kept.lost, kept.has_stopped) if kept is not None else follower.State()

    async def run(self) -> None:
        """Follows the leader, and looks for it again while it may return."""
        if self._state.lost:
            self._client.forget()
            return
        client, again = None, False
        while client is not self._client:
            client = self._client
            await client.run(join_timeout_s=self._meeting.join_timeout_s, again=again)
            again = True

    def leads(self, job_id: str) -> bool:
        del job_id
        return False

    def send(self, node: str, job_id: str, order: orders.Order) -> None:
        raise NotNowError(f"cannot give an order to node {node}: another node leads job {job_id}")

    def report(self, job_id: str, report: Report) -> None:
        del job_id
        self._take(follower.Said(report))

    def record(self, job_id: str, ledger: Ledger) -> None:
        raise NotNowError(f"cannot record anything of job {job_id}: another node leads it")

    def session_state(self, *, whole: bool = True) -> JobSessions:
        del whole  # they are few
        state = self._state
        return msgspec.structs.replace(self._client.session_state(), has_stopped=state.has_stopped, lost=state.lost)

    async def until_all_is_heard(self) -> None:
        await self._client.until_all_is_heard()

    def _new_client(self, kept: JobSessions | None) -> ClusterClient:
        return ClusterClient(
            self._meeting.endpoint,
            job_id=self._meeting.job_id,
            own_name=self._meeting.node,
            on_order=self._post,
            on_lost=self._lose_leader,
            on_fence=self._move_fence,
            on_aside=self.node_requests.take,
            tls=self._meeting.tls,
            session_store=SessionStore(self._session_store.keep, kept),
        )

    def _move_fence(self, until_s: float) -> None:
        """Moves the fence. If this process hangs, the spawner ends the workers, slightly later than this one would."""
        self._post(FenceMoved(self._meeting.job_id, until_s + SPAWNER_LATER_S))

    def _lose_leader(self, why: str) -> None:
        self._client.forget()
        if self._meeting.on_orphaned is not None:
            self._state = msgspec.structs.replace(self._state, lost=why)
            self._meeting.on_orphaned(why)
            return
        self._take(follower.LeaderLost(why, self._client.may_return))

    def _take(self, event: follower.Event) -> None:
        self._state, actions = follower.step(self._state, event, now_s=anyio.current_time())
        for action in actions:
            match action:
                case follower.Report(report):
                    self._client.report(Reported(self._meeting.job_id, report))
                case follower.Obey(order):
                    self._post(Ordered(self._meeting.job_id, order))
                case follower.Seek():
                    self._client = self._new_client(None)
                    # Until it is heard, no workers run; what is prepared for the next ones may stay.
                    self._move_fence(anyio.current_time() + self._meeting.join_timeout_s + FENCE_S)


@asynccontextmanager
async def open_peers(
    meeting: Meeting, post: Post, session_store: SessionStore | None = None, *, take_question: TakeQuestion = refuse
) -> AsyncGenerator[JobPeers]:
    """Opens the peers. The first process that listens at the endpoint leads the job; all others follow it.

    With the data kept in the `session_store`, this process continues what its predecessor did. `take_question` gets the
    questions of other nodes.
    """
    session_store = session_store or SessionStore()
    kept = session_store.kept
    listener = await listen(meeting.endpoint) if kept is None or kept.leads else None
    if kept is not None and kept.leads and listener is None:
        raise ConfigurationError(f"cannot lead at {meeting.endpoint} again: something else listens there; end it")
    leaders_store = session_store if meeting.nodes_max < KEPT_NODES_MAX else SessionStore(None, kept)
    async with AsyncExitStack() as closes, anyio.create_task_group() as tasks:
        if listener is not None:
            node_requests = RequestRouter(
                own_name=meeting.node,
                leads=True,
                take_question=take_question,
                pass_on=lambda node, aside: server.say_aside(node, aside),
            )
            server = ClusterServer(
                job_id=meeting.job_id,
                own_name=meeting.node,
                on_report=post,
                on_aside=node_requests.take,
                on_parted=node_requests.parted,
                tls=meeting.tls,
                fan_out=meeting.fan_out,
                nodes_max=meeting.nodes_max,
                session_store=leaders_store,
            )
            gc_tuning.collect_seldom(meeting.nodes_max)
            await tasks.start(server.run, listener)
            opened, said = LeaderPeers(meeting, server, post, node_requests), server.until_all_is_heard
        else:
            opened = FollowerPeers(meeting, post, session_store, take_question=take_question)
            tasks.start_soon(opened.run)
            said = opened.until_all_is_heard
        closes.callback(opened.node_requests.parted, None, CLOSED)
        yield opened
        with anyio.move_on_after(PARTING_S):
            await said()
        tasks.cancel_scope.cancel()


async def joining(
    spec: JobSpec, nodes: Nodes, session_store: SessionStore, *, state_dir: Path
) -> tuple[JobSpec, Callable[[Post, TakeQuestion], AbstractAsyncContextManager[JobPeers]]]:
    """Returns the job as this node runs it, and how to open its peers. Raises ConfigurationError."""
    meeting = await meeting_of(spec.job_id, nodes)
    spec = await at_own_address(await in_own_domain(spec), nodes)
    if not nodes.has_election:
        return spec, lambda post, take: open_peers(meeting, post, session_store, take_question=take)
    from supervisor.edges.peers.election import election  # Late: most jobs need no election.

    host = await own_host(nodes)
    return spec, await election.joining(
        spec.job_id, nodes, meeting.tls, session_store, own_host=host, state_dir=state_dir
    )


async def in_own_domain(spec: JobSpec) -> JobSpec:
    """Adds the node's NVLink domain, which jobs with segments need. Raises ConfigurationError if it is unknown."""
    if spec.rendezvous.segment is None or spec.facts.domain:
        return spec
    try:
        domain = await nvlink_domain.nvlink_domain()
    except nvlink_domain.NoDomainError as error:
        raise ConfigurationError(
            f"cannot use --ft-segment {spec.rendezvous.segment}: the NVLink domain of this node is not known: {error}; "
            "check nvidia-smi -q, or write --rdzv-conf nvlink_domain=NAME"
        ) from error
    return msgspec.structs.replace(spec, facts=msgspec.structs.replace(spec.facts, domain=domain))


async def meeting_of(job_id: str, nodes: Nodes) -> Meeting:
    """Reads token and certificates. Raises ConfigurationError if they can't be used."""
    files = TlsFiles(nodes.tls_cert, nodes.tls_key, nodes.tls_ca) if nodes.tls_cert else None
    tls = None
    if nodes.token_file or files is not None:
        tls = await in_thread(lambda: job_secrets.read(nodes.token_file, files), abandon_on_cancel=True)
    endpoint, others = PeerAddress(nodes.host, nodes.port), nodes.max_nodes - 1
    return Meeting(job_id, nodes.name, endpoint, nodes.join_timeout_s, tls, fan_out=nodes.fan_out, nodes_max=others)


async def at_own_address(spec: JobSpec, nodes: Nodes) -> JobSpec:
    """Returns the job with the store, if served here, at an address that other nodes reach, unless the user set one."""
    if spec.master_addr != MASTER_ADDR_DEFAULT:
        return spec
    return msgspec.structs.replace(spec, master_addr=await own_address(PeerAddress(nodes.host, nodes.port)))


async def own_host(nodes: Nodes) -> str:
    """Returns where other nodes reach this one: its name, if that is an address, else its address in their network."""
    try:
        return str(ipaddress.ip_address(nodes.name))
    except ValueError:
        return await own_address(PeerAddress(nodes.host, nodes.port))
