"""How many leaves, which ports, and which leaf for which node?"""

from __future__ import annotations

from collections import Counter

from supervisor.core.log_funnel import log_leaves


def test_leaves_follow_the_number_of_nodes_unless_they_are_asked_for():
    assert [log_leaves.leaf_count(0, nodes) for nodes in (1, 1536, 1537, 10_240)] == [1, 1, 2, 7]
    assert log_leaves.leaf_count(3, 10_240) == 3


def test_the_queue_of_a_leaf_follows_its_nodes_within_bounds():
    assert log_leaves.queue_chunks(-1, 2, 1) == 16_384
    assert log_leaves.queue_chunks(-1, 1536, 1) == 1536 * 256
    assert log_leaves.queue_chunks(-1, 100_000, 1) == 1_000_000
    assert (log_leaves.queue_chunks(1, 2, 1), log_leaves.queue_chunks(1000, 2, 1)) == (64, 1000)


def test_nodes_are_spread_by_their_place_or_their_name():
    assert [log_leaves.shard(rank, "any", 3) for rank in range(6)] == [0, 1, 2, 0, 1, 2]
    spread = Counter(log_leaves.shard(None, f"node{number}", 4) for number in range(1000))
    assert min(spread.values()) > 180
    assert log_leaves.shard(-1, "node7", 4) == log_leaves.shard(None, "node7", 4)


def test_the_root_listens_after_its_leaves():
    assert [log_leaves.leaf_port(50051, leaf) for leaf in range(2)] + [log_leaves.root_port(50051, 2)] == [
        50051,
        50052,
        50053,
    ]
