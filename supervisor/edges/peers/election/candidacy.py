"""What does a node that takes part in an election leave to a supervisor that comes back, and what is that one to do?

Where it followed, the next process goes on with the words to the same leader. Where it led, that lead is over: the
nodes elect a leader again, maybe the same node, and tell it what they run.
"""

from __future__ import annotations

import msgspec

from supervisor.core.correspondence import Candidate, Correspondence
from supervisor.edges.peers.cluster_client import ClusterClient
from supervisor.rendezvous_backend import Leader


def letters(
    known: Correspondence, candidate: Candidate, *, client: ClusterClient | None, leader: Leader | None, own_term: int
) -> Correspondence:
    """`known`: what is the same whoever leads. `own_term`: of this node's lead; 0: it does not lead."""
    if own_term:
        candidate = msgspec.structs.replace(candidate, met_term=candidate.met_term or own_term)
        return msgspec.structs.replace(known, leads=True, term=own_term, candidate=candidate)
    said = client.letters() if client is not None else Correspondence()
    if said.term is None or leader is None or leader.term != said.term:
        return msgspec.structs.replace(known, candidate=candidate)
    candidate = msgspec.structs.replace(
        candidate,
        met_term=candidate.met_term or leader.term,
        leader=leader.node,
        leader_address=leader.address,
        leader_ttl_s=leader.ttl_s,
    )
    return msgspec.structs.replace(
        known,
        candidate=candidate,
        incarnation=said.incarnation,
        term=said.term,
        letters=said.letters,
        known_at_s=said.known_at_s,
    )


def followed(kept: Correspondence) -> Leader | None:
    """The leader with which the process before this one was in touch."""
    if kept.candidate is None or not kept.candidate.leader or kept.term is None:
        return None
    before = kept.candidate
    return Leader(kept.term, before.leader, before.leader_address, before.leader_ttl_s)
