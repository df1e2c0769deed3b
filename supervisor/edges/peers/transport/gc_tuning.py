"""How often does the leader of thousands of nodes run the cyclic garbage collector?

A full collection visits all objects of all nodes, 0.3 s for 10,240 nodes, while nobody is served; at Python's default
rate one comes in every round. Even collections of young objects took a fifth of a leader's CPU in a round, since nearly
all objects that they visit are in use. Reference counting frees what a round leaves behind, so few collections do.
"""

from __future__ import annotations

import gc

NODES_MIN = 256  # fewer nodes are collected in milliseconds
YOUNG_OBJECTS = 10_000  # new objects per collection; Python's default is 700
FULL_COLLECTIONS_EACH = 100  # collections of younger objects per full one; Python's default is 10


def collect_seldom(nodes: int) -> None:
    """Makes collections rare in this process if it may serve that many nodes."""
    young, middle, full = gc.get_threshold()
    if nodes >= NODES_MIN and young:  # 0: somebody has disabled them
        gc.set_threshold(max(young, YOUNG_OBJECTS), middle, max(full, FULL_COLLECTIONS_EACH))
