"""When a node that has checks to pass joins, and what becomes of one that does not pass them."""

from __future__ import annotations

from supervisor.core.cluster.messages import NodeExcluded, NodeJoined
from supervisor.core.node import fitness
from supervisor.core.node.fitness import CHECK_S, JoinDropped, JoinWanted, RoundBegun
from supervisor.core.node.messages import CheckNode, DeadlineReached, NodeChecked, Publish, TellCoordinator
from supervisor.core.node_health import Finding, Health

JOB = "job"
WELL = (Finding("nvhcd", Health.HEALTHY, took_s=0.25),)
ILL = (Finding("nvhcd", Health.UNHEALTHY, "nvhcd counts 2 failed checks"),)
UNTOLD = (Finding("nvhcd", Health.SKIPPED, "nvhcd can't be asked: there is no socket /s"),)
JOINED = NodeJoined("a", -1)


class Node:
    def __init__(self) -> None:
        self.state = fitness.initial_state()

    def send(self, *events: fitness.Event, at: float = 0.0) -> list[fitness.Action]:
        """What came out of the last one."""
        actions: tuple[fitness.Action, ...] = ()
        for event in events:
            self.state, actions = fitness.step(self.state, event, now_s=at, job_id=JOB, node="a", cycle=0)
        return list(actions)

    def reports(self, *events: fitness.Event, at: float = 0.0) -> list[object]:
        return [each.report for each in self.send(*events, at=at) if isinstance(each, TellCoordinator)]


def test_it_joins_once_it_was_checked_and_is_ready_whichever_comes_last() -> None:
    first = Node()
    assert first.send(RoundBegun()) == [CheckNode(JOB, 1)]
    assert first.send(JoinWanted(JOINED)) == []
    assert first.reports(NodeChecked(JOB, 1, WELL)) == [JOINED]
    second = Node()
    assert second.reports(RoundBegun(), NodeChecked(JOB, 1, WELL)) == []
    assert second.reports(JoinWanted(JOINED)) == [JOINED]


def test_each_round_has_a_check_and_two_at_once_are_one() -> None:
    node = Node()
    node.send(RoundBegun(), NodeChecked(JOB, 1, WELL))
    assert node.send(RoundBegun()) == [CheckNode(JOB, 2)]
    assert node.send(RoundBegun()) == []
    assert node.send(NodeChecked(JOB, 1, ILL)) == [], "of an earlier round"
    assert node.send(JoinWanted(JOINED)) == []
    assert node.reports(NodeChecked(JOB, 2, WELL)) == [JOINED]


def test_an_unfit_node_says_why_and_then_that_nothing_runs_there() -> None:
    node = Node()
    node.send(RoundBegun(), JoinWanted(JOINED))
    actions = node.send(NodeChecked(JOB, 1, ILL))
    excluded = NodeExcluded("a", "node a is unhealthy: nvhcd counts 2 failed checks")
    assert [each.report for each in actions if isinstance(each, TellCoordinator)] == [excluded, JOINED]
    assert [each.event.kind for each in actions if isinstance(each, Publish)] == ["node_checked", "node_unhealthy"]


def test_what_could_not_be_told_evicts_nobody_and_is_said_once() -> None:
    node = Node()
    said: list[str] = []
    for number in (1, 2, 3):
        node.send(RoundBegun(), JoinWanted(JOINED))
        actions = node.send(NodeChecked(JOB, number, UNTOLD))
        assert TellCoordinator(JOB, JOINED) in actions
        said += [each.event.reason for each in actions if isinstance(each, Publish) and "skip" in each.event.kind]
    assert said == ["a check of node a is skipped: nvhcd can't be asked: there is no socket /s"]


def test_a_check_without_an_answer_is_skipped_at_its_deadline() -> None:
    node = Node()
    node.send(RoundBegun(), JoinWanted(JOINED), at=7.0)
    assert fitness.next_deadline_s(node.state) == 7.0 + CHECK_S
    assert node.send(DeadlineReached(), at=6.0 + CHECK_S) == []
    assert node.reports(DeadlineReached(), at=7.0 + CHECK_S) == [JOINED]
    assert fitness.next_deadline_s(node.state) is None
    assert node.send(NodeChecked(JOB, 1, ILL)) == [], "too late"


def test_a_node_that_is_not_ready_any_more_does_not_join_after_its_check() -> None:
    node = Node()
    assert node.reports(RoundBegun(), JoinWanted(JOINED), JoinDropped(), NodeChecked(JOB, 1, WELL)) == []
