"""What must a supervisor that comes back know of the words between the nodes of a job?

Numbers of messages and what the other side has not confirmed (edges/peers/cluster_session.py). With it, the next
process goes on with the conversations of the one before it: the other side has lost a connection for a moment.
"""

from __future__ import annotations

import msgspec


class Letters(msgspec.Struct, frozen=True):
    """One side of one conversation."""

    said: int = 0  # the number of the last message
    unconfirmed: tuple[bytes, ...] = ()  # the last messages that were said
    received: int = 0  # the number of the last one that has come, and is part of what is kept


class NodeLetters(msgspec.Struct, frozen=True):
    """Those of the leader, with one node."""

    node: str
    incarnation: str
    letters: Letters


class Correspondence(msgspec.Struct, frozen=True):
    """Of one job on this node."""

    leads: bool = False
    # where it leads:
    nodes: tuple[NodeLetters, ...] = ()
    gone: tuple[str, ...] = ()  # incarnations that were given up
    # where it follows:
    incarnation: str = ""  # of this node; "": none yet
    term: int | None = None  # of the leader; None: it was never reached
    letters: Letters = Letters()
    known_at_s: float | None = None  # when the last word was said that the leader has answered
    has_stopped: bool = False  # nothing runs here any more, as the node has reported
    lost: str = ""  # why there is no leader any more
