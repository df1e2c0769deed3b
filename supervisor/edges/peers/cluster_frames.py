"""What do a node of a job and its coordinator say to each other over the cluster stream?

The records of one frame each; cluster_codec.py writes and reads them. The handshake: the coordinator sends Challenge,
the node Hello, the coordinator Welcome or Refusal. Then orders go one way and reports the
other, and asides both ways.
"""

from __future__ import annotations

import msgspec

from supervisor.core.cluster.messages import Reported
from supervisor.core.elastic.messages import ElasticOrder, ElasticReport
from supervisor.core.node.messages import Ordered


class ClusterProtocolError(ValueError):
    """Raised for bytes that no peer of ours sends. The connection they came by can't be trusted any more."""


class Challenge(msgspec.Struct, frozen=True):
    """The first frame of a connection, from the coordinator."""

    nonce: bytes


class Hello(msgspec.Struct, frozen=True):
    """The node says who it is and proves that it knows the job's token."""

    protocol_version: int  # the newest that it speaks
    job_id: str
    node: str
    incarnation: str
    nonce: bytes
    proof: bytes
    oldest_version: int = 0  # that it still speaks; 0: its newest is the only one
    relay_port: int = 0  # where a relay takes other nodes' connections, which go on over this one; 0: no relay


class Welcome(msgspec.Struct, frozen=True):
    """The coordinator proves that it knows the token, too."""

    proof: bytes
    term: int
    protocol_version: int = 0  # that both sides speak from now on; 0: the first


class Refusal(msgspec.Struct, frozen=True):
    """The coordinator does not take this node; it closes the connection after this."""

    reason: str


class Alive(msgspec.Struct, frozen=True):
    """The heartbeat of either side."""


class ServeRelay(msgspec.Struct, frozen=True):
    """The node takes connections of other nodes, and carries what they say over a connection of its own."""


class Asked(msgspec.Struct, frozen=True):
    """A question of one node to another, for people. It may be lost; the leader passes it on without reading it."""

    job_id: str
    to: str  # a node; "": the leader
    by: str  # the node that asks
    number: int  # the asker's own
    question: bytes  # question_codec.py


class Answered(msgspec.Struct, frozen=True):
    """A part of an answer, on the same way back."""

    job_id: str
    to: str  # the node that asked
    number: int
    part: int  # from 0
    is_last: bool
    answer: bytes


class Unknown(msgspec.Struct, frozen=True):
    """A frame of a newer version, which this one skips."""


class ElasticOrdered(msgspec.Struct, frozen=True):
    """An order to one of torchrun's agents."""

    order: ElasticOrder


class ElasticReported(msgspec.Struct, frozen=True):
    """A report of one of torchrun's agents."""

    report: ElasticReport


Handshake = Challenge | Hello | Welcome | Refusal
Aside = Asked | Answered
Frame = Handshake | Alive | Ordered | Reported | ElasticOrdered | ElasticReported | ServeRelay | Aside | Unknown


def nobody_hears(sender: str, aside: Aside) -> None:
    """For a side that has no answers."""
