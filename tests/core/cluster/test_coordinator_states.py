"""Parts go to nodes with the processes that they have then, and a lost node keeps what it had reported."""

from __future__ import annotations

import msgspec

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import NodeLost
from supervisor.core.cluster.coordinator_states import said, with_member, with_parts, without
from supervisor.core.cluster.node_states import Member, MemberState
from supervisor.core.facts import NodeFacts


def test_a_part_is_given_to_a_node_and_to_the_process_that_it_has_then():
    state = coordinator.initial_state("j", leader="a")
    state = with_member(state, "a", Member(MemberState.RUNNING, facts=NodeFacts(process="p1")))
    given = with_parts(state, ("a", "unknown"))
    assert (given.parts, given.processes) == (("a", "unknown"), ("p1", ""))


def test_a_lost_node_keeps_what_it_had_reported():
    reported = Member(MemberState.RUNNING, cycle=4, excluded="bad memory")
    state = with_member(coordinator.initial_state("j", leader="a"), "a", reported)
    state = without(state, NodeLost("a", "node a is lost", comes_again=True))
    assert state.members["a"] == msgspec.structs.replace(reported, state=MemberState.LOST, comes_again=True)


def test_what_is_said_before_the_first_cycle_belongs_to_it():
    state = coordinator.initial_state("j", leader="a")
    assert said(state, "rendezvous_waits", "1 of 2 nodes").event.cycle == 0
    later = msgspec.structs.replace(state, cycle=3)
    assert said(later, "rendezvous_waits", "1 of 2 nodes").event.cycle == 3
