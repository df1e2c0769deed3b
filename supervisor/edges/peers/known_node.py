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


async def until_all_is_heard(nodes: Collection[KnownNode]) -> None:
    """Waits until each has everything sent to it, or is lost."""
    for known in nodes:
        known.conversation.part()
    for known in nodes:
        await known.conversation.until_all_is_heard()


async def until_all_have_left(nodes: Collection[KnownNode]) -> None:
    """Waits until none is connected."""
    for known in nodes:
        await known.conversation.until_let_go()


def letters(nodes: Mapping[str, KnownNode], gone: Collection[str]) -> Correspondence:
    """Returns what is kept for a returning supervisor; all may go out now. `gone`: incarnations, oldest first."""
    kept = (NodeLetters(name, each.incarnation, each.conversation.letters()) for name, each in nodes.items())
    return Correspondence(leads=True, nodes=tuple(kept), gone=tuple(gone)[-GONE_KEPT_MAX:])
