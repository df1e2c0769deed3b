"""When does a node with checks join, and what happens to one that does not pass them?"""

from __future__ import annotations

from supervisor.config.node_check_plans import HealthChecks
from supervisor.core.cluster.cluster_messages import NodeExcluded, NodeJoined
from supervisor.core.facts import Cause
from supervisor.core.node import node_check_round
from supervisor.core.node.node_check_round import JobOver, JoinDropped, JoinWanted, RoundBegun
from supervisor.core.node.node_messages import CheckNode, DeadlineReached, NodeChecked, Publish, TellCoordinator
from supervisor.core.node_check_facts import CheckPlan, Health, HealthFinding

JOB = "job"
CHECK_S = 150.0
NVHCD = CheckPlan("nvhcd", CHECK_S)
DISK = CheckPlan("disk", 15.0, patience_s=1.0, period_s=60.0)
WELL = (HealthFinding("nvhcd", Health.HEALTHY, took_s=0.25),)
ILL = (HealthFinding("nvhcd", Health.UNHEALTHY, "nvhcd counts 2 failed checks"),)
UNTOLD = (HealthFinding("nvhcd", Health.SKIPPED, "nvhcd can't be asked: there is no socket /s"),)
DISK_WELL = (HealthFinding("disk", Health.HEALTHY, subject="/a"), HealthFinding("disk", Health.HEALTHY, subject="/b"))
DISK_ILL = (DISK_WELL[0], HealthFinding("disk", Health.UNHEALTHY, "/b can't be read: no such file", subject="/b"))
JOINED = NodeJoined("a", -1)


class Node:
    def __init__(self, *plans: CheckPlan) -> None:
        self.state = node_check_round.initial_state(plans or (NVHCD,))

    def send(self, *events: node_check_round.Event, at: float = 0.0) -> list[node_check_round.Action]:
        """Returns the last event's actions."""
        actions: tuple[node_check_round.Action, ...] = ()
        for event in events:
            self.state, actions = node_check_round.step(self.state, event, now_s=at, job_id=JOB, node="a", cycle=0)
        return list(actions)

    def reports(self, *events: node_check_round.Event, at: float = 0.0) -> list[object]:
        return [each.report for each in self.send(*events, at=at) if isinstance(each, TellCoordinator)]

    def kinds(self, *events: node_check_round.Event, at: float = 0.0) -> list[str]:
        return [each.event.kind for each in self.send(*events, at=at) if isinstance(each, Publish)]


def checked(number: int, findings: tuple[HealthFinding, ...]) -> NodeChecked:
    return NodeChecked(JOB, findings[0].check, number, findings)


def test_it_joins_once_it_was_checked_and_is_ready_whichever_comes_last() -> None:
    first = Node()
    assert first.send(RoundBegun()) == [CheckNode(JOB, "nvhcd", 1)]
    assert first.send(JoinWanted(JOINED)) == []
    assert first.reports(checked(1, WELL)) == [JOINED]
    second = Node()
    assert second.reports(RoundBegun(), checked(1, WELL)) == []
    assert second.reports(JoinWanted(JOINED)) == [JOINED]


def test_a_join_that_waits_for_a_check_tells_the_age_that_its_cause_has_by_then() -> None:
    node = Node()
    node.send(RoundBegun(), at=10.5)
    node.send(JoinWanted(NodeJoined("a", 0, Cause("rank 0 raised", age_s=0.5))), at=10.5)
    (joined,) = node.reports(checked(1, WELL), at=12.5)
    assert joined == NodeJoined("a", 0, Cause("rank 0 raised", age_s=2.5))


def test_checks_run_side_by_side_and_the_join_waits_for_all() -> None:
    node = Node(NVHCD, DISK)
    assert node.send(RoundBegun()) == [CheckNode(JOB, "nvhcd", 1), CheckNode(JOB, "disk", 1)]
    assert node.send(JoinWanted(JOINED), checked(1, DISK_WELL)) == []
    actions = node.send(checked(1, WELL))
    assert TellCoordinator(JOB, JOINED) in actions
    (said,) = [each.event for each in actions if isinstance(each, Publish)]
    assert said.reason == "node a was checked: nvhcd: healthy, disk /a: healthy, disk /b: healthy"
    assert dict(said.details) == {
        "nvhcd": "healthy in 0.250 s",
        "disk /a": "healthy in 0.000 s",
        "disk /b": "healthy in 0.000 s",
    }


def test_each_round_has_a_check_and_two_at_once_are_one() -> None:
    node = Node()
    node.send(RoundBegun(), checked(1, WELL))
    assert node.send(RoundBegun()) == [CheckNode(JOB, "nvhcd", 2)]
    assert node.send(RoundBegun()) == []
    assert node.send(checked(1, ILL)) == [], "of an earlier round"
    assert node.send(JoinWanted(JOINED)) == []
    assert node.reports(checked(2, WELL)) == [JOINED]


def test_an_unfit_node_says_why_and_then_that_nothing_runs_there() -> None:
    node = Node()
    node.send(RoundBegun(), JoinWanted(JOINED))
    actions = node.send(checked(1, ILL))
    excluded = NodeExcluded("a", "node a is unhealthy: nvhcd counts 2 failed checks")
    assert [each.report for each in actions if isinstance(each, TellCoordinator)] == [excluded, JOINED]
    assert [each.event.kind for each in actions if isinstance(each, Publish)] == ["node_checked", "node_unhealthy"]


def test_a_gpu_whose_loss_is_confirmed_slowly_excludes_its_node() -> None:
    node = Node(*HealthChecks(has_gpus=True).plans("a"))
    node.send(RoundBegun(), JoinWanted(JOINED))
    lost = (HealthFinding("gpu", Health.UNHEALTHY, "GPU 1: the driver has lost it", subject="GPU 1"),)
    assert node.reports(DeadlineReached(), at=9.0) == []
    assert node.reports(checked(1, lost), at=9.0) == [
        NodeExcluded("a", "node a is unhealthy: GPU 1: the driver has lost it"), JOINED
    ]  # fmt: skip


def test_one_bad_thing_of_several_is_enough() -> None:
    node = Node(DISK)
    (excluded, _) = node.reports(RoundBegun(), JoinWanted(JOINED), checked(1, DISK_ILL))
    assert excluded == NodeExcluded("a", "node a is unhealthy: /b can't be read: no such file")


def test_what_could_not_be_told_evicts_nobody_and_is_said_once() -> None:
    node = Node()
    said: list[str] = []
    for number in (1, 2, 3):
        node.send(RoundBegun(), JoinWanted(JOINED))
        actions = node.send(checked(number, UNTOLD))
        assert TellCoordinator(JOB, JOINED) in actions
        said += [each.event.reason for each in actions if isinstance(each, Publish) and "skip" in each.event.kind]
    assert said == ["a check of node a is skipped: nvhcd can't be asked: there is no socket /s"]


def test_a_check_that_stops_to_answer_again_is_told_again() -> None:
    silent = (HealthFinding("nvhcd", Health.UNANSWERED, "it says nothing"),)
    node = Node()
    kinds = [node.kinds(RoundBegun(), checked(number + 1, each)) for number, each in enumerate([silent, WELL, silent])]
    assert ["node_check_unanswered" in each for each in kinds] == [True, False, True]


def test_a_check_without_an_answer_evicts_nobody_at_its_deadline() -> None:
    node = Node()
    node.send(RoundBegun(), JoinWanted(JOINED), at=7.0)
    assert node_check_round.next_deadline_s(node.state) == 7.0 + CHECK_S
    assert node.send(DeadlineReached(), at=6.0 + CHECK_S) == []
    assert node.reports(DeadlineReached(), at=7.0 + CHECK_S) == [JOINED]
    assert node_check_round.next_deadline_s(node.state) is None


def test_a_late_check_is_unhealthy_where_its_plan_says_so() -> None:
    node = Node(CheckPlan("nvhcd", CHECK_S, late=Health.UNHEALTHY))
    assert node.send(RoundBegun(), JoinWanted(JOINED), DeadlineReached()) == []
    (excluded, joined) = node.reports(DeadlineReached(), at=CHECK_S)
    assert excluded == NodeExcluded("a", "node a is unhealthy: the check nvhcd has not answered within 150 s")
    assert joined == JOINED


def test_a_check_that_is_stuck_is_not_begun_again_and_holds_up_no_later_round() -> None:
    node = Node()
    node.send(RoundBegun(), JoinWanted(JOINED))
    node.send(DeadlineReached(), at=CHECK_S)
    actions = node.send(RoundBegun(), at=200.0)
    assert CheckNode not in [type(each) for each in actions], "one at most"
    assert node.reports(JoinWanted(JOINED), at=200.0) == [JOINED]
    assert node.kinds(checked(1, ILL), at=300.0) == ["node_check_changed"]
    assert node.send(RoundBegun(), at=400.0) == [CheckNode(JOB, "nvhcd", 2)]


def test_a_join_waits_for_a_patient_check_no_longer_than_its_patience() -> None:
    node = Node(DISK)
    node.send(RoundBegun(), at=100.0)
    assert node_check_round.next_deadline_s(node.state) == 115.0, "nobody waits yet"
    assert node.send(JoinWanted(JOINED), at=100.3) == []
    assert node_check_round.next_deadline_s(node.state) == 101.0
    actions = node.send(DeadlineReached(), at=101.0)
    assert TellCoordinator(JOB, JOINED) in actions
    assert [each.event.kind for each in actions if isinstance(each, Publish)] == [
        "node_checked",
        "node_check_unanswered",
    ]
    assert node.kinds(checked(1, DISK_ILL), at=102.0) == ["node_check_changed"], "it counts at the next stop"


def test_the_timer_rests_while_a_patient_check_and_another_are_both_missing() -> None:
    """A moment that has passed would fire the timer again and again."""
    node = Node(DISK, NVHCD)
    node.send(RoundBegun(), JoinWanted(JOINED), at=100.0)
    assert node_check_round.next_deadline_s(node.state) == 115.0, "the join waits for nvhcd in any case"
    node.send(DeadlineReached(), at=115.0)
    assert node_check_round.next_deadline_s(node.state) == 100.0 + CHECK_S
    both = Node(DISK, CheckPlan("other", 15.0, patience_s=3.0))
    both.send(RoundBegun(), JoinWanted(JOINED), at=100.0)
    assert node_check_round.next_deadline_s(both.state) == 103.0, "the join waits for the more patient one"
    assert both.reports(DeadlineReached(), at=103.0) == [JOINED]


def test_patience_that_is_over_when_the_join_is_wanted_costs_nothing() -> None:
    node = Node(DISK)
    node.send(RoundBegun(), at=100.0)
    assert node.reports(JoinWanted(JOINED), at=103.0) == [JOINED]


def test_where_patience_ends_an_earlier_answer_counts() -> None:
    node = Node(DISK)
    node.send(RoundBegun(), JoinWanted(JOINED), checked(1, DISK_WELL))
    node.send(RoundBegun(), at=30.0)
    assert node.send(JoinWanted(JOINED), at=30.04) == []
    actions = node.send(DeadlineReached(), at=31.0)
    assert TellCoordinator(JOB, JOINED) in actions
    (said,) = [each.event for each in actions if isinstance(each, Publish)]
    assert dict(said.details)["disk /a"] == "healthy in 0.000 s: found 31 s ago, no answer since"


def test_what_a_check_has_found_so_far_counts_where_nobody_waits_for_the_rest() -> None:
    node = Node(DISK)
    so_far = (HealthFinding("disk", Health.UNANSWERED, "/a does not answer", subject="/a"), DISK_ILL[1])
    (excluded, _) = node.reports(RoundBegun(), JoinWanted(JOINED), NodeChecked(JOB, "disk", 1, so_far, is_last=False))
    assert excluded == NodeExcluded("a", "node a is unhealthy: /b can't be read: no such file")
    later = Node(DISK)
    assert later.reports(RoundBegun(), NodeChecked(JOB, "disk", 1, so_far, is_last=False)) == []
    assert later.reports(JoinWanted(JOINED)) == [excluded, JOINED]
    strict = Node(CheckPlan("disk", 15.0))
    assert strict.send(RoundBegun(), JoinWanted(JOINED), NodeChecked(JOB, "disk", 1, so_far, is_last=False)) == []


def test_a_check_that_is_waited_for_to_its_deadline_may_let_the_join_go() -> None:
    """As nvhcd does, if the service has left the last call unanswered. A late answer is told, and counts."""
    node = Node(CheckPlan("nvhcd", CHECK_S, patience_s=CHECK_S))
    node.send(RoundBegun(), JoinWanted(JOINED), at=7.0)
    assert node_check_round.next_deadline_s(node.state) == 7.0 + CHECK_S
    assert node.reports(NodeChecked(JOB, "nvhcd", 1, UNTOLD, is_last=False), at=7.5) == [JOINED]
    actions = node.send(RoundBegun(), at=20.0)
    assert CheckNode not in [type(each) for each in actions], "one at most"
    assert node.reports(JoinWanted(JOINED), at=20.0) == [JOINED]
    assert node.kinds(checked(1, ILL), at=30.0) == ["node_check_changed"]
    assert node.send(RoundBegun(), at=40.0) == [CheckNode(JOB, "nvhcd", 2)]


def test_a_check_with_a_period_is_repeated_and_what_changes_is_told() -> None:
    node = Node(DISK)
    node.send(RoundBegun(), JoinWanted(JOINED), checked(1, DISK_WELL))
    assert node_check_round.next_deadline_s(node.state) == 60.0
    assert node.send(DeadlineReached(), at=60.0) == [CheckNode(JOB, "disk", 2)]
    assert node.send(checked(2, DISK_WELL), at=60.1) == []
    node.send(DeadlineReached(), at=120.1)
    actions = node.send(checked(3, DISK_ILL), at=120.2)
    (said,) = [each.event for each in actions if isinstance(each, Publish)]
    assert said.reason == "a check of node a changes: disk /b is unhealthy: /b can't be read: no such file"
    assert len(actions) == 1, "a cycle that runs goes on"
    shown = node_check_round.checks_of(node.state)
    assert [(each.finding.name, each.finding.health, each.found_at_s) for each in shown] == [
        ("disk /a", Health.HEALTHY, 120.2),
        ("disk /b", Health.UNHEALTHY, 120.2),
    ]


def test_a_look_that_is_under_way_counts_for_the_round() -> None:
    node = Node(DISK)
    node.send(RoundBegun(), checked(1, DISK_WELL))
    node.send(DeadlineReached(), at=60.0)
    assert node.send(RoundBegun(), at=60.1) == []
    assert node.kinds(checked(2, DISK_ILL), at=60.2) == ["node_checked", "node_unhealthy"]
    assert node.reports(JoinWanted(JOINED), at=60.3) == [JOINED]


def test_a_hang_that_is_known_when_the_round_begins_delays_nothing() -> None:
    node = Node(DISK)
    node.send(RoundBegun(), JoinWanted(JOINED), checked(1, DISK_WELL))
    node.send(DeadlineReached(), at=60.0)
    assert node.kinds(DeadlineReached(), at=75.0) == ["node_check_changed"]
    node.send(RoundBegun(), at=90.0)
    assert node.reports(JoinWanted(JOINED), at=90.0) == [JOINED]


def test_a_node_that_is_not_ready_any_more_does_not_join_after_its_check() -> None:
    node = Node()
    assert node.reports(RoundBegun(), JoinWanted(JOINED), JoinDropped(), checked(1, WELL)) == []


def test_after_the_end_of_the_job_nothing_is_checked() -> None:
    node = Node(DISK)
    node.send(RoundBegun(), JoinWanted(JOINED), checked(1, DISK_WELL))
    node.send(JobOver())
    assert node_check_round.next_deadline_s(node.state) is None
    assert node.send(DeadlineReached(), at=1000.0) == []
    assert node.send(RoundBegun(), at=1000.0) == []
