"""What a node that elects its leader leaves behind says which leader it followed, or that it led."""

from __future__ import annotations

from typing import cast

from supervisor.core.session_state import Candidate, JobSessions, SessionState
from supervisor.edges.peers.election import election_hand_over
from supervisor.edges.peers.stream.cluster_client import ClusterClient
from supervisor.ports.rendezvous_backend import Leader

KNOWN = JobSessions(known_at_s=3.0, has_stopped=True)
SAID = JobSessions(incarnation="i", term=7, letters=SessionState(2, (b"x",), 5), known_at_s=4.0)
LEADER = Leader(7, "b", "10.0.0.2:9", 2.0)


class Client:
    def session_state(self) -> JobSessions:
        return SAID


def left(leader: Leader | None, *, own_term: int = 0) -> JobSessions:
    client = cast("ClusterClient", Client())
    return election_hand_over.session_state(KNOWN, Candidate("p"), client=client, leader=leader, own_term=own_term)


def test_the_words_with_the_leader_of_now_are_left_with_where_it_is() -> None:
    kept = left(LEADER)
    assert (kept.incarnation, kept.letters, kept.known_at_s, kept.has_stopped) == ("i", SAID.letters, 4.0, True)
    assert kept.candidate is not None
    assert (kept.candidate.process, kept.candidate.met_term) == ("p", 7)
    assert election_hand_over.followed(kept) == LEADER


def test_words_with_a_leader_that_leads_no_more_are_of_no_use() -> None:
    for leader in (None, Leader(8, "c", "10.0.0.3:9", 2.0)):
        kept = left(leader)
        assert (kept.incarnation, kept.letters, kept.known_at_s) == ("", SessionState(), 3.0)
        assert election_hand_over.followed(kept) is None


def test_a_leader_leaves_its_term() -> None:
    kept = left(LEADER, own_term=9)
    assert (kept.leads, kept.term, kept.incarnation) == (True, 9, "")
    assert kept.candidate is not None
    assert kept.candidate.met_term == 9
    assert election_hand_over.followed(kept) is None
