"""How often does the leader of thousands of nodes run the cyclic garbage collector?

A full collection visits all objects of all nodes, 0.3 s for 10,240 nodes, while nobody is served; at Python's default
rate one comes in every round. Reference counting frees what a round leaves behind, so a collection every many rounds is
enough.
"""

from __future__ import annotations

import gc

NODES_MIN = 256  # fewer nodes are collected in milliseconds
FULL_LOOKS_EACH = 100  # collections of younger objects per full one; Python's default is 10


def look_seldom(nodes: int) -> None:
    """Makes full collections rare in this process if it may serve that many nodes."""
    young, middle, full = gc.get_threshold()
    if nodes >= NODES_MIN and full < FULL_LOOKS_EACH:
        gc.set_threshold(young, middle, FULL_LOOKS_EACH)
