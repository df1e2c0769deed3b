"""What does a leader know of each node that is connected to it, or may be again?"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from supervisor.core.correspondence import Correspondence, NodeLetters
from supervisor.edges.peers.cluster_link import Conversation

GONE_KEPT_MAX = 256  # incarnations; those that were given up before these have ended by themselves


class KnownNode:
    __slots__ = ("conversation", "incarnation", "is_direct")

    def __init__(self, incarnation: str, conversation: Conversation) -> None:
        self.incarnation = incarnation
        self.conversation = conversation
        self.is_direct = False  # its connection is with the leader itself, not with a relay


def letters(nodes: Mapping[str, KnownNode], gone: Collection[str]) -> Correspondence:
    """What is kept for a supervisor that comes back, and may go out from now on. `gone`: incarnations, oldest first."""
    kept = (NodeLetters(name, each.incarnation, each.conversation.letters()) for name, each in nodes.items())
    return Correspondence(leads=True, nodes=tuple(kept), gone=tuple(gone)[-GONE_KEPT_MAX:])
