"""Rounds, fences, units: with one node, and with the seams for more."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import pytest

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.messages import (
    Action,
    AnnounceRestart,
    DeadlineReached,
    JobOpened,
    NodeExcluded,
    NodeFailed,
    NodeJoined,
    NodeSucceeded,
    OrderCycle,
    Publish,
    ReachVerdict,
    RestartOrdered,
    StopOrdered,
)
from supervisor.core.facts import Assignment, JobState, RestartPolicyName, RestartRules, Verdict
from tests.core.playbook import Playbook


def opened(min_nodes: int = 1, **rules: object) -> Playbook[coordinator.State]:
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    restart = RestartRules(**({"max_restarts": 3, "min_nodes": min_nodes} | rules))  # pyright: ignore[reportArgumentType]
    play >> JobOpened(restart, local_world_size=2) << ()
    return play


def running(*nodes: str, **rules: object) -> Playbook[coordinator.State]:
    nodes = nodes or ("a",)
    play = opened(len(nodes), **rules)
    for node in nodes:
        play >> NodeJoined(node, -1)
    assert len(play.of(OrderCycle)) == len(nodes)
    return play


def decisions(play: Playbook[coordinator.State]) -> tuple[Action, ...]:
    return tuple(action for action in play.last if not isinstance(action, Publish))


def test_one_node_is_ordered_as_soon_as_it_joins() -> None:
    play = opened()
    play >> NodeJoined("a", -1) << OrderCycle("a", Assignment(0, world_size=2), "first start")
    play >> NodeJoined("a", -1) << ()


def test_ranks_follow_the_sorted_names_and_extra_nodes_wait() -> None:
    play = opened(2)
    play >> NodeJoined("c", -1) << ()
    play >> NodeJoined("b", -1)
    assert [(each.node, each.assignment.group_rank, each.assignment.first_rank) for each in play.of(OrderCycle)] == [
        ("b", 0, 0),
        ("c", 1, 2),
    ]
    assert {each.assignment.world_size for each in play.of(OrderCycle)} == {4}
    play >> NodeJoined("a", -1) << ()  # a spare interrupts nothing
    play >> NodeFailed("c", 0, "x")
    play >> NodeJoined("b", 0)
    assert [each.node for each in play.of(OrderCycle)] == ["a", "b"]


def test_reports_that_overtake_the_opening_are_kept() -> None:
    play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    play >> NodeJoined("a", -1) << ()
    play >> JobOpened(RestartRules(), 1)
    assert [each.node for each in play.of(OrderCycle)] == ["a"]


def test_the_next_round_is_opened_before_anybody_has_stopped() -> None:
    play = running()
    play >> NodeFailed("a", 0, "rank 1 died")
    reason = "rank 1 died; restarting at once, restarts used 1 of 3"
    assert decisions(play) == (AnnounceRestart(1, reason),)
    play >> NodeJoined("a", 0) << OrderCycle("a", Assignment(1, world_size=2), reason)


def test_one_fault_takes_one_unit_however_many_nodes_it_takes() -> None:
    play = running("a", "b", "c")
    play >> NodeFailed("b", 0, "rank 2 died")
    for node in ("a", "c"):
        play >> NodeFailed(node, 0, "connection lost")
        assert decisions(play) == ()
        assert [each.event.kind for each in play.of(Publish)] == ["fault_folded"]
    assert coordinator.restarts_used(play.state) == 1
    for node in ("a", "b", "c"):
        play >> NodeJoined(node, 0)
    assert len(play.of(OrderCycle)) == 3


def test_a_cycle_waits_until_nobody_runs_the_last_one() -> None:
    play = running("a", "b")
    play >> NodeFailed("a", 0, "x")
    play >> NodeJoined("spare", -1) << ()
    play >> NodeJoined("a", 0) << ()
    play >> NodeJoined("b", 0)
    assert [each.node for each in play.of(OrderCycle)] == ["a", "b"]


def test_what_an_older_cycle_reports_changes_nothing() -> None:
    play = running()
    play >> NodeFailed("a", 0, "x")
    play >> NodeJoined("a", 0)
    before = play.state
    for event in (NodeFailed("a", 0, "x"), NodeJoined("a", 0), NodeSucceeded("a", 0), NodeFailed("a", 7, "x")):
        play >> event << ()
    assert play.state == before


def test_a_fault_between_two_cycles_is_a_new_one() -> None:
    """A spawner that cannot be started must not be tried for ever."""
    play = opened(max_restarts=2)
    for used in (1, 2):
        play >> NodeFailed("a", -1, "no python")
        assert decisions(play)[0] == AnnounceRestart(0, f"no python; restarting at once, restarts used {used} of 2")
    play >> NodeFailed("a", -1, "no python")
    assert decisions(play) == (ReachVerdict(Verdict(JobState.FAILED, 1, "no python; restarts used 2 of 2")),)


def test_a_report_that_its_own_join_overtook_still_counts() -> None:
    """The checkpoint file is read beside the loop, so NodeFailed may come after NodeJoined."""
    play = running()
    play >> NodeJoined("a", 0) << ()
    play >> NodeFailed("a", 0, "rank 1 died", iteration=5)
    assert [type(each) for each in decisions(play)] == [AnnounceRestart, OrderCycle]
    assert coordinator.restarts_used(play.state) == 1


def test_a_delay_is_waited_for_once_and_ends_by_itself() -> None:
    play = running(backoff_base_s=4.0, max_no_progress_cycles=0, max_restarts=9)
    for cycle in range(5):
        play >> NodeFailed("a", cycle, "x")
        play >> NodeJoined("a", cycle)
        assert play.of(OrderCycle)
    play.at(3.0) >> NodeFailed("a", 5, "x")
    assert coordinator.next_deadline_s(play.state) == 7.0
    play >> NodeJoined("a", 5) << ()
    play.at(6.9) >> DeadlineReached() << ()
    play.at(7.0) >> DeadlineReached()
    assert [each.assignment.cycle for each in play.of(OrderCycle)] == [6]
    assert coordinator.next_deadline_s(play.state) is None


def test_a_delay_holds_back_new_spawners_too() -> None:
    play = opened(max_restarts=9)
    for _ in range(5):
        play >> NodeFailed("a", -1, "no python")
    play >> NodeFailed("a", -1, "no python")
    assert decisions(play) == ()
    assert coordinator.next_deadline_s(play.state) == 0.5
    play.at(0.5) >> DeadlineReached()
    assert [type(each) for each in play.last] == [AnnounceRestart]
    assert coordinator.next_deadline_s(play.state) is None


def test_a_person_restarts_without_a_unit() -> None:
    play = running()
    play >> RestartOrdered("new code")
    assert [type(each) for each in decisions(play)] == [AnnounceRestart]
    play >> NodeJoined("a", 0)
    assert play.of(OrderCycle)
    assert coordinator.restarts_used(play.state) == 0


def test_success_needs_every_node() -> None:
    play = running("a", "b")
    play >> NodeSucceeded("b", 0)
    assert decisions(play) == ()
    play >> NodeSucceeded("b", 0) << ()
    play >> NodeSucceeded("a", 0) << ReachVerdict(Verdict(JobState.SUCCEEDED, 0, "all ranks exited with code 0"))


def test_a_node_that_was_done_runs_again_when_another_fails() -> None:
    play = running("a", "b")
    play >> NodeSucceeded("b", 0)
    play >> NodeFailed("a", 0, "x")
    play >> NodeJoined("a", 0) << ()
    play >> NodeJoined("b", 0)
    assert len(play.of(OrderCycle)) == 2


def test_the_end_is_told_to_whoever_comes_later_and_changed_by_nobody() -> None:
    play = running()
    verdict = Verdict(JobState.STOPPED, 143, "signalled")
    play >> StopOrdered(verdict) << ReachVerdict(verdict)
    for event in (NodeFailed("a", 0, "x"), RestartOrdered("y"), StopOrdered(Verdict(JobState.FAILED, 1, "z"))):
        play >> event << ()
    play >> NodeJoined("late", -1) << ReachVerdict(verdict)
    assert coordinator.next_deadline_s(play.state) is None


def test_an_excluded_node_is_missed_at_its_next_fault() -> None:
    play = running()
    play >> NodeExcluded("a", "rank 1 asked to exclude node a: bad link") << ()
    play >> NodeFailed("a", 0, "rank 0 died")
    reason = "rank 0 died; rank 1 asked to exclude node a: bad link; 0 nodes are left where 1 are needed"
    assert decisions(play) == (ReachVerdict(Verdict(JobState.FAILED, 1, reason)),)


def test_an_excluded_node_is_replaced_by_a_spare() -> None:
    play = running("a", "b")
    play >> NodeJoined("c", -1)
    play >> NodeExcluded("a", "bad link") << ()
    play >> NodeFailed("a", 0, "x")
    play >> NodeJoined("a", 0) << ()
    play >> NodeJoined("b", 0)
    assert [each.node for each in play.of(OrderCycle)] == ["b", "c"]


@pytest.mark.parametrize("nodes", [("a",), ("a", "b", "c")])
def test_min_healthy_restarts_a_group_that_has_no_node_to_spare(nodes: tuple[str, ...]) -> None:
    play = running(*nodes, policy=RestartPolicyName.MIN_HEALTHY)
    play >> NodeFailed("a", 0, "x")
    assert play.of(AnnounceRestart)


def test_a_spare_that_fails_takes_no_unit() -> None:
    play = running()
    play >> NodeJoined("b", -1)
    play >> NodeFailed("b", -1, "its spawner was lost")
    assert decisions(play) == ()
    assert coordinator.restarts_used(play.state) == 0
