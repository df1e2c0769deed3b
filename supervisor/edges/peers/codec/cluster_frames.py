"""What do a node of a job and its coordinator send each other over the cluster stream?

One record per frame; cluster_codec.py encodes and decodes them. The handshake: the coordinator sends Greeting, the
node Hello, the coordinator Welcome or Refusal. Then orders go one way, reports the other, and asides both ways.
"""

from __future__ import annotations

import msgspec

from supervisor.core.cluster.cluster_messages import Reported
from supervisor.core.elastic.elastic_messages import ElasticOrder, ElasticReport
from supervisor.core.node.node_messages import Ordered


class ClusterProtocolError(ValueError):
    """Raised for bytes that no peer of ours sends. Their connection can't be trusted any more."""


class Greeting(msgspec.Struct, frozen=True):
    """The first frame of a connection, from the coordinator: TLS has begun, and it waits for the Hello."""


class Hello(msgspec.Struct, frozen=True):
    """The node identifies itself."""

    protocol_version: int  # the newest version that it speaks
    job_id: str
    node: str
    incarnation: str
    proof: bytes = b""  # with certificates and a token: it knows the token (see hello_exchange.py)
    oldest_version: int = 0  # the oldest version that it speaks; 0: only the newest
    relay_port: int = 0  # the port of a relay, whose connections are forwarded over this one; 0: not a relay


class Welcome(msgspec.Struct, frozen=True):
    """The coordinator accepts the node."""

    term: int
    proof: bytes = b""  # as in Hello
    protocol_version: int = 0  # the version that both sides use from now on; 0: the first
    door_key: bytes = b""  # see preamble.py; b"": the job's token makes it


class Refusal(msgspec.Struct, frozen=True):
    """The coordinator refuses this node and then closes the connection."""

    reason: str


class Alive(msgspec.Struct, frozen=True):
    """The heartbeat of either side."""


class ServeRelay(msgspec.Struct, frozen=True):
    """Orders the node to take connections of other nodes and to forward their data over a connection of its own."""


class Asked(msgspec.Struct, frozen=True):
    """A question of one node to another, for people. It may be lost; the leader forwards it without reading it."""

    job_id: str
    to: str  # a node; "": the leader
    by: str  # the node that asks
    number: int  # counted by the asker
    question: bytes  # encoded by question_codec.py


class Answered(msgspec.Struct, frozen=True):
    """A part of an answer; it takes the same way back."""

    job_id: str
    to: str  # the node that asked
    number: int
    part: int  # from 0
    is_last: bool
    answer: bytes


class Unknown(msgspec.Struct, frozen=True):
    """A frame of a newer version; it is skipped."""


class ElasticOrdered(msgspec.Struct, frozen=True):
    """An order to one of torchrun's agents."""

    order: ElasticOrder


class ElasticReported(msgspec.Struct, frozen=True):
    """A report of one of torchrun's agents."""

    report: ElasticReport


Handshake = Greeting | Hello | Welcome | Refusal
Aside = Asked | Answered
Frame = Handshake | Alive | Ordered | Reported | ElasticOrdered | ElasticReported | ServeRelay | Aside | Unknown


def nobody_hears(sender: str, aside: Aside) -> None:
    """Drops an aside, on a side that has no answers."""
