"""What must a returning supervisor know about the messages between the nodes of a job?

It must know message numbers and what the other side has not confirmed (cluster_session.py). With these, a
new process continues its predecessor's conversations, and the other side sees only a brief loss of connection.
"""

from __future__ import annotations

import msgspec

from supervisor.core.cluster.cluster_messages import NodeCordoned, NodeExcluded, RestartAsked, StopAsked

Request = StopAsked | RestartAsked  # of people; repeated to the next leader for a while
LastingRequest = NodeExcluded | NodeCordoned  # holds under any leader: it is a part of NodeStands


class SessionState(msgspec.Struct, frozen=True):
    """One side of a conversation."""

    said: int = 0  # number of the last message sent
    unconfirmed: tuple[bytes, ...] = ()  # the last messages sent
    received: int = 0  # number of the last message received and included in what is kept


class NodeSessionState(msgspec.Struct, frozen=True):
    """The leader's side of its conversation with one node."""

    node: str
    incarnation: str
    letters: SessionState


class Candidate(msgspec.Struct, frozen=True):
    """A node that takes part in electing the leader."""

    process: str  # as the ledger names this node's process
    met_term: int = 0  # term of the first leader that this process met; 0: none
    leader: str = ""  # the node that it follows; "": none
    leader_address: str = ""
    leader_ttl_s: float = 0.0
    wishes: tuple[tuple[float, Request | LastingRequest], ...] = ()  # with times; an earlier version kept both kinds


class JobSessions(msgspec.Struct, frozen=True):
    """This node's conversations about one job."""

    leads: bool = False
    candidate: Candidate | None = None  # None: the leader is not elected
    # if it leads:
    nodes: tuple[NodeSessionState, ...] = ()
    gone: tuple[str, ...] = ()  # incarnations that the leader has given up
    is_whole: bool = True  # False: `nodes` are only those that have changed since it was read last,
    left: tuple[str, ...] = ()  # and these are no longer among them
    # if it follows:
    incarnation: str = ""  # of this node; "": none yet
    term: int | None = None  # the leader's, also if this node leads; None: never reached, or kept by an earlier version
    letters: SessionState = SessionState()
    known_at_s: float | None = None  # when the last message that the leader answered was sent
    has_stopped: bool = False  # the node has reported that nothing runs here any more
    lost: str = ""  # why there is no longer a leader
