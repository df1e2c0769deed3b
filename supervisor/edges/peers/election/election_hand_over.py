"""What does a node that takes part in an election leave to a supervisor that comes back, and what is that one to do?

Where it followed, the next process goes on with the words to the same leader. Where it led, that lead is over: the
nodes elect a leader again, maybe the same node, and tell it what they run.
"""

from __future__ import annotations

import msgspec

from supervisor.core.election import candidate
from supervisor.core.election.leader import Leader
from supervisor.core.session_state import Candidate, JobSessions, Request
from supervisor.edges.peers.election.voter import Voter
from supervisor.edges.peers.stream.cluster_client import ClusterClient


def session_state(
    known: JobSessions, taking_part: Candidate, *, client: ClusterClient | None, leader: Leader | None, own_term: int
) -> JobSessions:
    """Returns what to keep. `known`: the same under any leader. `own_term`: this node's lead; 0: it does not lead."""
    if own_term:
        taking_part = msgspec.structs.replace(taking_part, met_term=taking_part.met_term or own_term)
        return msgspec.structs.replace(known, leads=True, term=own_term, candidate=taking_part)
    said = client.session_state() if client is not None else JobSessions()
    if said.term is None or leader is None or leader.term != said.term:
        return msgspec.structs.replace(known, candidate=taking_part)
    taking_part = msgspec.structs.replace(
        taking_part,
        met_term=taking_part.met_term or leader.term,
        leader=leader.node,
        leader_address=leader.address,
        leader_ttl_s=leader.ttl_s,
    )
    return msgspec.structs.replace(
        known,
        candidate=taking_part,
        incarnation=said.incarnation,
        term=said.term,
        letters=said.letters,
        known_at_s=said.known_at_s,
    )


def begun(voter: Voter, process: str, kept: JobSessions | None, *, now_s: float) -> candidate.State:
    """Returns the node as it takes part in the election: a new one, or the one that the process before this one was."""
    before = kept.candidate if kept is not None else None
    state = candidate.initial_state(
        voter.job_id,
        voter.node,
        process if before is None else before.process,
        join_timeout_s=voter.join_timeout_s,
        now_s=now_s,
        known_at_s=kept.known_at_s if kept is not None and before is not None else None,
    )
    if kept is None or before is None:
        return state
    if before.met_term:  # When the process before this one has said its last word, nobody knows.
        left = voter.node if kept.leads else ""
        state = msgspec.structs.replace(state, left_at_s=now_s, left=left, waits_since_s=None)
    phase = candidate.Over(kept.lost) if kept.lost else state.phase
    return msgspec.structs.replace(
        state,
        met_term=before.met_term,
        requests=tuple((at_s, each) for at_s, each in before.wishes if isinstance(each, Request)),
        has_stopped=kept.has_stopped,
        newest_term=kept.term or 0,
        phase=phase,
    )


def followed(kept: JobSessions) -> Leader | None:
    """Returns the leader with which the process before this one was in touch."""
    if kept.candidate is None or not kept.candidate.leader or kept.term is None:
        return None
    before = kept.candidate
    return Leader(kept.term, before.leader, before.leader_address, before.leader_ttl_s)
