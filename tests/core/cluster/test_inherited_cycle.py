"""What does a new leader find of the newest cycle: who takes part, who waits for it, and who is missing?"""

from __future__ import annotations

import msgspec

from supervisor.core.cluster import inherited_cycle
from supervisor.core.cluster.cluster_messages import MemberState, NodeStands
from supervisor.core.facts import Assignment, JobRules, JobState, NodeFacts, Verdict
from supervisor.core.leader_ledger import Ledger
from supervisor.core.term_numbers import ERA

LEDGER = Ledger(cycle=4, opened=4, parts=("a", "b", "c"), processes=("a1", "b1", "c1"))


def stands(
    node: str,
    group_rank: int | None,
    state: MemberState = MemberState.RUNNING,
    *,
    cycle: int = 4,
    process: str = "",
    all_succeeded: bool = False,
    verdict: Verdict | None = None,
) -> dict[str, NodeStands]:
    part = Assignment(cycle, group_rank, 3, 6, 2 * group_rank) if group_rank is not None else None
    rules = JobRules("job", 2, facts=NodeFacts(process=process or f"{node}1"))
    said = NodeStands(node, rules, state, cycle if part else -1, part, all_succeeded=all_succeeded, verdict=verdict)
    return {node: said}


def test_nodes_that_the_order_has_not_reached_wait_and_none_is_missing():
    nodes = stands("a", 0) | stands("b", None, MemberState.JOINED) | stands("c", 1, MemberState.JOINED, cycle=3)
    found = inherited_cycle.find(LEDGER, nodes)
    assert (list(found.parts), sorted(found.waiting), found.missing(3)) == ([0], [1, 2], ())
    assert found.is_complete


def test_a_new_process_of_a_node_waits_for_no_order_and_neither_does_one_that_has_stopped():
    nodes = (
        stands("a", 0) | stands("b", None, MemberState.JOINED, process="b2") | stands("c", None, MemberState.STOPPED)
    )
    found = inherited_cycle.find(LEDGER, nodes)
    assert (found.missing(3), found.is_complete) == ((1, 2), False)
    assert found.absentee(1, nodes) == "of group rank 1", "its name is that of the new process"
    assert found.absentee(1, {}) == "b"


def test_where_the_processes_are_not_known_nobody_waits():
    """The ledger or the node has an older version."""
    older = msgspec.structs.replace(LEDGER, processes=())
    assert not inherited_cycle.find(older, stands("b", None, MemberState.JOINED)).waiting
    unknown = msgspec.structs.replace(LEDGER, processes=("", "", ""))
    assert not inherited_cycle.find(unknown, stands("b", None, MemberState.JOINED, process="b2")).waiting


def test_a_spare_that_has_the_place_of_a_lost_node_counts_and_the_lost_node_does_not():
    found = inherited_cycle.find(LEDGER, stands("x", 1) | stands("a", 0))
    assert (list(found.parts), found.missing(3)) == ([0], (1, 2))


def test_a_node_that_the_cycle_goes_on_without_is_not_missing_and_a_newer_cycle_may_run_there():
    without_c = msgspec.structs.replace(LEDGER, vacant=("c",))
    late = stands("c", 1, MemberState.JOINED, cycle=3)
    for c in ({}, late, stands("c", 2)):
        found = inherited_cycle.find(without_c, stands("a", 0) | stands("b", 1) | c)
        assert (list(found.parts), found.waiting, found.missing(3)) == ([0, 1], {}, ())
        assert (found.is_complete, found.is_at_work) == (True, False)
    assert not inherited_cycle.find(without_c, stands("a", 0) | late).is_complete
    ended = stands("a", 0, MemberState.SUCCEEDED) | stands("b", 1, MemberState.SUCCEEDED)
    assert inherited_cycle.find(without_c, ended).has_succeeded


def test_without_a_ledger_the_nodes_say_how_many_they_are_and_nobody_knows_who_waits():
    nodes = stands("a", 0) | stands("b", 1) | stands("c", 2, MemberState.JOINED, cycle=3)
    found = inherited_cycle.find(Ledger(), nodes)
    assert (found.number, found.size, found.names, found.waiting) == (4, 3, (), {})
    assert found.missing(3) == (2,)
    assert inherited_cycle.never_began(nodes, found, (2,))
    assert not inherited_cycle.never_began(nodes, found, (1, 2))
    assert not inherited_cycle.never_began(nodes, inherited_cycle.find(LEDGER, nodes), (2,)), "the ledger knows who"


def test_a_cycle_has_succeeded_once_all_ranks_of_all_its_nodes_have_ended_well():
    nodes = stands("a", 0, MemberState.SUCCEEDED) | stands("b", 1, MemberState.STOPPED, all_succeeded=True)
    assert not inherited_cycle.find(LEDGER, nodes).has_succeeded, "c has not said anything"
    assert inherited_cycle.find(LEDGER, nodes | stands("c", 2, MemberState.SUCCEEDED)).has_succeeded
    assert not inherited_cycle.find(LEDGER, nodes | stands("c", 2, MemberState.STOPPED)).has_succeeded


def test_a_node_is_at_work_while_it_runs_its_part_or_has_run_it_to_its_end():
    assert inherited_cycle.is_at_work(stands("a", 0))
    assert inherited_cycle.is_at_work(stands("a", 0, MemberState.SUCCEEDED))
    assert not inherited_cycle.is_at_work(stands("a", 0, MemberState.JOINED) | stands("b", 1, MemberState.FAILED))


def test_a_cycle_is_at_work_while_all_its_nodes_are_or_have_ended_well():
    nodes = stands("a", 0) | stands("b", 1, MemberState.STOPPED, all_succeeded=True)
    assert not inherited_cycle.find(LEDGER, nodes).is_at_work, "c has not said anything"
    assert inherited_cycle.find(LEDGER, nodes | stands("c", 2, MemberState.SUCCEEDED)).is_at_work
    assert not inherited_cycle.find(LEDGER, nodes | stands("c", 2, MemberState.FAILED)).is_at_work


def test_the_verdict_that_was_final_counts_before_the_one_that_was_to_be():
    """In between, the leader has learned which rank was the first to fail."""
    first, final = (Verdict(JobState.FAILED, 1, f"rank {rank} failed") for rank in (0, 2))
    nodes = stands("a", 0, MemberState.STOPPED, verdict=first) | stands("b", 1, MemberState.INFORMED, verdict=final)
    found = inherited_cycle.find(Ledger(), nodes)
    assert (found.verdict_beyond(Ledger(), 7), found.verdict_beyond(LEDGER, ERA)) == (final, final)
    assert found.verdict_beyond(LEDGER, 7) is None, "nothing is lost, and it was never recorded"
    found = inherited_cycle.find(Ledger(), stands("a", 0, MemberState.STOPPED, verdict=first))
    assert found.verdict_beyond(Ledger(), 7) == first
    assert inherited_cycle.find(Ledger(), stands("a", 0)).verdict_beyond(Ledger(), 7) is None
