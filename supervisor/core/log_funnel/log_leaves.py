"""How many leaves does a job's log server have, where do they listen, and which one does a node send to?"""

from __future__ import annotations

NODES_PER_LEAF = 1536
CHUNKS_LEAST, CHUNKS_MOST = 16_384, 1_000_000
CHUNKS_FLOOR = 64  # the least, whatever was asked for
CHUNKS_PER_NODE = 256
PORT_MAX = 65_535


def leaf_count(asked: int, max_nodes: int) -> int:
    """Returns the number of leaves. `asked` 0: as many as the nodes need."""
    return asked or max(1, -(-max_nodes // NODES_PER_LEAF))


def queue_chunks(asked: int, max_nodes: int, leaves: int) -> int:
    """Returns the longest queue of a leaf. `asked` below 0: chosen by the number of its nodes."""
    if asked >= 0:
        return max(CHUNKS_FLOOR, asked)
    return min(CHUNKS_MOST, max(CHUNKS_LEAST, -(-max_nodes // leaves) * CHUNKS_PER_NODE))


def shard(infrastructure_rank: int | None, node: str, leaves: int) -> int:
    """Returns the leaf of a node: by its place in the scheduler's order, else by its name."""
    if infrastructure_rank is not None and infrastructure_rank >= 0:
        return infrastructure_rank % leaves
    import hashlib  # Late: it loads OpenSSL, and few jobs have log servers.

    return int.from_bytes(hashlib.sha256(node.encode("utf-8", "surrogateescape")).digest()[:8], "big") % leaves


def leaf_port(first: int, leaf: int) -> int:
    return first + leaf


def root_port(first: int, leaves: int) -> int:
    """Returns the root's port, which follows those of the leaves."""
    return first + leaves
