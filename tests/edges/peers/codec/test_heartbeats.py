"""Heartbeats of nodes and of leaders are told apart, and what is neither is not read."""

from __future__ import annotations

from supervisor.core.election.leader_heartbeats import LeaderHeartbeat
from supervisor.edges.peers.codec import heartbeats


def test_each_is_read_as_what_it_is():
    of_node, of_leader = heartbeats.of_node(1.5), heartbeats.of_leader(LeaderHeartbeat(2.5, 7, counts=True))
    assert (heartbeats.sent_at_s(of_node), heartbeats.leaders(of_node)) == (1.5, None)
    assert (heartbeats.sent_at_s(of_leader), heartbeats.leaders(of_leader)) == (
        None,
        LeaderHeartbeat(2.5, 7, counts=True),
    )
    assert of_node.startswith(heartbeats.FIRST)
    assert of_leader.startswith(heartbeats.FIRST)


def test_what_is_neither_is_not_read():
    for other in (b"", heartbeats.FIRST, heartbeats.of_node(1.5) + b"x"):
        assert (heartbeats.sent_at_s(other), heartbeats.leaders(other)) == (None, None)
