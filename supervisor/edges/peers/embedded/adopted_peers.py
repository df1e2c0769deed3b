"""How do the private supervisors of several nodes together serve a job whose ranks a launcher started?

The supervisor on the node of rank 0 leads. It creates a secret and says where it listens; a rank publishes both in the
script's store, where one rank of each other node finds them. The folder of the job's ranks keeps them for the successor
of a supervisor that dies. The loss of a supervisor ends no rank: all supervisors of the job start again with the
successor and learn from the ranks how far these are.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

from supervisor.config.job_spec import JobSpec
from supervisor.core.cluster.cluster_messages import NodeLost, Reported
from supervisor.core.node.node_messages import FenceMoved, JobAbandoned, Ordered
from supervisor.edges.machine import records
from supervisor.edges.peers.embedded import cluster_peers
from supervisor.edges.peers.stream.cluster_server import REPLACED
from supervisor.edges.peers.transport import cluster_tls
from supervisor.edges.peers.transport.cluster_link import PeerAddress
from supervisor.edges.peers.transport.own_address import address_towards_others
from supervisor.errors import ConfigurationError
from supervisor.ports.edges import Post
from supervisor.ports.questions import PeersAndNodeRequests, TakeQuestion

TEXT_BYTES_MAX = 4096
JOIN_TIMEOUT_S = 600.0
ANYWHERE = "0.0.0.0"


class Leader(msgspec.Struct, frozen=True):
    """Where the leader of a job listens, and the values that its nodes share."""

    host: str
    port: int
    secret: str


class NodeMeeting(msgspec.Struct, frozen=True):
    job_id: str
    nodes: int
    node_rank: int
    leader: Leader

    @property
    def leads(self) -> bool:
        return self.node_rank == 0

    @property
    def node(self) -> str:
        """Returns a node name that sorts in the order of the ranks, which the launcher gave."""
        return f"node-{self.node_rank:06d}"

    @property
    def idle_s(self) -> float:
        """Returns how long the ranks of this node may wait for those of other nodes."""
        return JOIN_TIMEOUT_S

    def text(self) -> str:
        return msgspec.json.encode(self.leader).decode()

    def part_of(self, spec: JobSpec) -> JobSpec:
        """Returns the job's part of this node; the job begins when all nodes are there."""
        return msgspec.structs.replace(spec, restart=msgspec.structs.replace(spec.restart, min_nodes=self.nodes))

    def open_peers(
        self, post: Post, take_question: TakeQuestion, on_orphaned: Callable[[], None]
    ) -> AbstractAsyncContextManager[PeersAndNodeRequests]:
        """Opens the peers. `on_orphaned`: the leader is lost, or must start again with a node's new supervisor.

        In both cases all ranks tell the successors how far they are.
        """
        host = _listens_at(self.leader.host) if self.leads else self.leader.host
        meeting = cluster_peers.Meeting(
            self.job_id,
            self.node,
            PeerAddress(host, self.leader.port),
            JOIN_TIMEOUT_S,
            cluster_tls.from_token(self.leader.secret.encode()),
            on_orphaned=lambda _: on_orphaned(),
        )

        def take(event: Ordered | Reported | FenceMoved | JobAbandoned) -> None:
            lost = event.report if isinstance(event, Reported) else None
            if isinstance(lost, NodeLost) and lost.reason.endswith(REPLACED):
                on_orphaned()
            else:
                post(event)

        return cluster_peers.open_peers(meeting, take, take_question=take_question)


def meet(path: Path, text: str, job_id: str, nodes: int, node_rank: int, host: str) -> NodeMeeting:
    """Returns the meeting. `text`: what the leader published; "" on its own node, and for the successor of one that has
    kept it.

    Raises ConfigurationError.
    """
    try:
        leader = records.decoded(text, Leader) if text else _kept(path) or _begin(host, node_rank)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(leader))
    except OSError as error:
        raise ConfigurationError(
            f"cannot meet the supervisors of the other nodes: {error}; check the state folder"
        ) from error
    return NodeMeeting(job_id, nodes, node_rank, leader)


def _kept(path: Path) -> Leader | None:
    try:
        return records.read(path, Leader, bytes_max=TEXT_BYTES_MAX)
    except FileNotFoundError:
        return None


def _begin(host: str, node_rank: int) -> Leader:
    if node_rank:
        raise ConfigurationError(
            "cannot meet the supervisors of the other nodes: their leader is not known here; start node 0 first"
        )
    address = _listens_at(host)
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return Leader(
            host or address_towards_others() or socket.gethostname(), probe.getsockname()[1], secrets.token_hex(32)
        )


def _listens_at(host: str) -> str:
    """Returns the address to listen at: on its own node, a name may resolve to another address than elsewhere."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return host
    return "127.0.0.1" if host == "localhost" else ANYWHERE
