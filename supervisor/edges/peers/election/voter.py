"""As which node does a supervisor take part in electing the leader of its job?"""

from __future__ import annotations

import msgspec

from supervisor.edges.peers.transport.cluster_tls import Tls


class Voter(msgspec.Struct, frozen=True):
    job_id: str
    node: str
    host: str  # its address for the other nodes
    join_timeout_s: float
    tls: Tls | None = None
    fan_out: int = 0  # how many of the others connect to the leader directly; 0: all
    others_max: int = 0
