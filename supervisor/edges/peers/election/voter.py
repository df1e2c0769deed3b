"""As whom does a node take part in electing the leader of its job?"""

from __future__ import annotations

import msgspec

from supervisor.edges.peers.cluster_tls import Tls


class Voter(msgspec.Struct, frozen=True):
    job_id: str
    node: str
    host: str  # where the other nodes reach it
    token: bytes
    join_timeout_s: float
    tls: Tls | None = None
    fan_out: int = 0  # so many of the others connect to the leader itself; 0: all of them
    others_max: int = 0
