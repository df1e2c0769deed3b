"""What do the heartbeats between a node and its leader look like?

That of a node is its time; the leader sends it back. That of an elected leader names a cycle, too
(leader_heartbeats.py), and the node sends it back. They are not frames: each goes ahead of everything that waits.
"""

from __future__ import annotations

import struct

from supervisor.core.election.leader_heartbeats import LeaderHeartbeat

FIRST = b"\0"  # the first byte, which no frame has

_NODES = struct.Struct(">cd")  # when it was sent, by the clock of the node
_LEADERS = struct.Struct(">cdq?")  # the same of the leader, the cycle, whether it counts


def of_node(sent_at_s: float) -> bytes:
    return _NODES.pack(FIRST, sent_at_s)


def sent_at_s(heartbeat: bytes) -> float | None:
    """Returns when this heartbeat of a node was sent; None: it is not one."""
    return _NODES.unpack(heartbeat)[1] if len(heartbeat) == _NODES.size else None


def of_leader(heartbeat: LeaderHeartbeat) -> bytes:
    return _LEADERS.pack(FIRST, heartbeat.sent_at_s, heartbeat.cycle, heartbeat.counts)


def leaders(heartbeat: bytes) -> LeaderHeartbeat | None:
    """Returns the heartbeat of a leader; None: it is not one."""
    if len(heartbeat) != _LEADERS.size:
        return None
    _, sent_at_s, cycle, counts = _LEADERS.unpack(heartbeat)
    return LeaderHeartbeat(sent_at_s, cycle, counts)
