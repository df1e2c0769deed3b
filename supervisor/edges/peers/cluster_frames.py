"""What do a node of a job and its coordinator say to each other over the cluster stream?

The records of one frame each; cluster_codec.py writes and reads them. The handshake: the coordinator sends Challenge,
the node Hello, the coordinator Welcome or Refusal. Then orders go one way and reports the other.
"""

from __future__ import annotations

import msgspec

from supervisor.core.cluster.messages import Reported
from supervisor.core.node.messages import Ordered


class ClusterProtocolError(ValueError):
    """Raised for bytes that no peer of ours sends. The connection they came by can't be trusted any more."""


class Challenge(msgspec.Struct, frozen=True):
    """The first frame of a connection, from the coordinator."""

    nonce: bytes


class Hello(msgspec.Struct, frozen=True):
    """The node says who it is and proves that it knows the job's token."""

    protocol_version: int
    job_id: str
    node: str
    incarnation: str
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, frozen=True):
    """The coordinator proves that it knows the token, too."""

    proof: bytes
    term: int


class Refusal(msgspec.Struct, frozen=True):
    """The coordinator does not take this node; it closes the connection after this."""

    reason: str


class Alive(msgspec.Struct, frozen=True):
    """The heartbeat of either side."""


class Unknown(msgspec.Struct, frozen=True):
    """A frame of a newer version, which this one skips."""


Handshake = Challenge | Hello | Welcome | Refusal
Frame = Handshake | Alive | Ordered | Reported | Unknown
