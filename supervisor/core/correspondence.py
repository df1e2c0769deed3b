"""What must a returning supervisor know about the messages between the nodes of a job?

It must know message numbers and what the other side has not confirmed (edges/peers/cluster_session.py). With these, a
new process continues its predecessor's conversations, and the other side sees only a brief loss of connection.
"""

from __future__ import annotations

import msgspec


class Letters(msgspec.Struct, frozen=True):
    """One side of a conversation."""

    said: int = 0  # number of the last message sent
    unconfirmed: tuple[bytes, ...] = ()  # the last messages sent
    received: int = 0  # number of the last message received and included in what is kept


class NodeLetters(msgspec.Struct, frozen=True):
    """The leader's side of its conversation with one node."""

    node: str
    incarnation: str
    letters: Letters


class Correspondence(msgspec.Struct, frozen=True):
    """This node's conversations about one job."""

    leads: bool = False
    # if it leads:
    nodes: tuple[NodeLetters, ...] = ()
    gone: tuple[str, ...] = ()  # incarnations that the leader has given up
    # if it follows:
    incarnation: str = ""  # of this node; "": none yet
    term: int | None = None  # the leader's; None: never reached
    letters: Letters = Letters()
    known_at_s: float | None = None  # when the last message that the leader answered was sent
    has_stopped: bool = False  # the node has reported that nothing runs here any more
    lost: str = ""  # why there is no longer a leader
