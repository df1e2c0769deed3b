"""What does a leader know about each node that is connected to it, or may reconnect?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

from supervisor.core.session_state import JobSessions, NodeSessionState
from supervisor.edges.peers.transport.cluster_link import Conversation

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


def session_state(
    nodes: Mapping[str, KnownNode], gone: dict[str, None], changed: dict[str, None], *, term: int, whole: bool
) -> JobSessions:
    """Returns what is kept for a returning supervisor; all may go out now. `gone`: incarnations, oldest first.

    `changed`: the nodes whose conversation has changed since the last time, to be emptied; `whole`: all are wanted.
    """
    names = list(changed)
    changed.clear()
    found = nodes if whole else [name for name in names if name in nodes]
    kept = (NodeSessionState(name, nodes[name].incarnation, nodes[name].conversation.session_state()) for name in found)
    return JobSessions(
        leads=True,
        nodes=tuple(kept),
        gone=tuple(islice(reversed(gone), GONE_KEPT_MAX))[::-1],
        is_whole=whole,
        left=() if whole else tuple(name for name in names if name not in nodes),
        term=term,
    )
