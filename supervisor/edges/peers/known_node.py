"""What does a leader know about each node that is connected to it, or may reconnect?"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from supervisor.core.correspondence import Correspondence, NodeLetters
from supervisor.edges.peers.cluster_link import Conversation

GONE_KEPT_MAX = 256  # incarnations; those abandoned earlier have ended by themselves


class KnownNode:
    __slots__ = ("conversation", "incarnation", "is_direct")

    def __init__(self, incarnation: str, conversation: Conversation) -> None:
        self.incarnation = incarnation
        self.conversation = conversation
        self.is_direct = False  # it is connected to the leader itself, not through a relay


def letters(nodes: Mapping[str, KnownNode], gone: Collection[str]) -> Correspondence:
    """Returns what is kept for a returning supervisor; all may go out now. `gone`: incarnations, oldest first."""
    kept = (NodeLetters(name, each.incarnation, each.conversation.letters()) for name, each in nodes.items())
    return Correspondence(leads=True, nodes=tuple(kept), gone=tuple(gone)[-GONE_KEPT_MAX:])
