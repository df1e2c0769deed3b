"""Which node leads a job whose leader is elected, for whom, and where?"""

from __future__ import annotations

import msgspec


class Leader(msgspec.Struct, frozen=True):
    """The current leader. Terms increase: of two leaders, the one with the higher term is the later one."""

    term: int
    node: str
    address: str  # HOST:PORT where it listens for the other nodes
    ttl_s: float
