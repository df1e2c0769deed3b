"""A job whose node has checks, from its start through restarts to its end."""

from __future__ import annotations

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import MemberState, NodeExcluded, NodeJoined, NodeStands
from supervisor.core.facts import JobRules, JobState, RendezvousRules, RestartRules
from supervisor.core.node import node_messages
from supervisor.core.node.node_messages import CheckNode, NodeChecked, PrepareStore, StartSpawner, WorkersEmptied
from supervisor.core.node_check_facts import CheckPlan, Health, HealthFinding
from tests.core.one_node import JOB, NOW, OneNode, rules

CHECK_S = 150.0
CHECKS = (CheckPlan("nvhcd", CHECK_S),)
WELL = (HealthFinding("nvhcd", Health.HEALTHY),)
ILL = (HealthFinding("nvhcd", Health.UNHEALTHY, "nvhcd counts 1 failed checks"),)


def running(local_world_size: int = 1) -> OneNode:
    job = OneNode(rules(local_world_size), checks=CHECKS)
    assert job.actions == [CheckNode(JOB, "nvhcd", 1), StartSpawner(JOB, 1)]
    job.send(NodeChecked(JOB, "nvhcd", 1, WELL))
    return job.send(node_messages.SpawnerReady(JOB, NOW)).run_cycle(0)


def test_the_first_cycle_waits_for_the_check() -> None:
    job = OneNode(rules(1), checks=CHECKS)
    job.send(node_messages.SpawnerReady(JOB, NOW))
    assert job.actions == []
    assert job.view().state is JobState.RENDEZVOUS
    job.send(NodeChecked(JOB, "nvhcd", 1, WELL))
    assert job.actions == [PrepareStore(JOB, 0)]
    assert job.said("node_checked") == ["node a was checked: nvhcd: healthy"]


def test_a_node_that_is_ill_at_the_start_ends_the_job_with_the_reason() -> None:
    job = OneNode(rules(1), checks=CHECKS)
    job.send(node_messages.SpawnerReady(JOB, NOW), NodeChecked(JOB, "nvhcd", 1, ILL))
    verdict = job.verdict()
    assert verdict is not None
    assert (verdict.state, verdict.exit_code) == (JobState.FAILED, 1)
    assert verdict.reason.startswith("node a is unhealthy: nvhcd counts 1 failed checks; 0 nodes are left")


def test_a_restart_checks_while_the_workers_are_stopped() -> None:
    job = running(2)
    job.exit(0, 1, code=1)
    assert CheckNode(JOB, "nvhcd", 2) in job.actions
    job.send(NodeChecked(JOB, "nvhcd", 2, WELL))
    job.exit(0, 0, signal=15)
    job.send(WorkersEmptied(JOB, 0))
    assert job.view().cycle == 1
    job.run_cycle(1)
    assert job.view().state is JobState.RUNNING


def test_a_restart_waits_for_a_check_that_is_late_and_not_longer_than_its_deadline() -> None:
    job = running()
    job.exit(0, 0, code=1)
    job.send(WorkersEmptied(JOB, 0))
    assert job.view().cycle == 0
    job.pass_to(job.now_s + CHECK_S + 1)
    assert job.view().cycle == 1
    assert job.said("node_check_unanswered") == [
        "a check of node a has no answer, which excludes no node: the check nvhcd has not answered within 150 s"
    ]


def test_a_node_that_falls_ill_ends_the_job_at_its_next_restart() -> None:
    job = running()
    job.exit(0, 0, code=1)
    job.send(NodeChecked(JOB, "nvhcd", 2, ILL))
    job.send(WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert "node a is unhealthy" in verdict.reason


def test_the_end_of_a_job_waits_for_no_check() -> None:
    job = running()
    job.exit(0, 0, code=0)
    job.send(WorkersEmptied(JOB, 0))
    assert CheckNode not in [type(action) for action in job.actions]
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.state is JobState.SUCCEEDED


def test_a_stop_does_not_wait_for_the_first_check() -> None:
    job = OneNode(rules(1), checks=CHECKS)
    job.send(node_messages.SpawnerReady(JOB, NOW), node_messages.StopRequested(JOB, "enough", 0))
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.state is JobState.STOPPED
    assert job.send(NodeChecked(JOB, "nvhcd", 1, WELL)).actions == []


def test_a_job_without_checks_is_never_checked() -> None:
    job = OneNode(rules(1)).send(node_messages.SpawnerReady(JOB, NOW))
    assert CheckNode not in [type(action) for action in job.actions]


# --- beside other nodes --------------------------------------------------------------------------------------------

PERIOD_S = 60.0
REPEATED = (CheckPlan("nvhcd", CHECK_S, period_s=PERIOD_S),)
OF_THREE = JobRules(JOB, 1, restart=RestartRules(min_nodes=2), rendezvous=RendezvousRules(max_nodes=3))


def test_a_node_that_is_still_checked_has_not_joined_for_a_new_leader_either() -> None:
    job = OneNode(OF_THREE, checks=CHECKS)
    job.send(node_messages.SpawnerReady(JOB, NOW), node_messages.Ordered(JOB, orders.Introduce()))
    stands = job.told[-1]
    assert isinstance(stands, NodeStands)
    assert stands.state is MemberState.OPENED
    job.send(NodeChecked(JOB, "nvhcd", 1, WELL))
    assert job.told[-1] == NodeJoined("a", -1)
    job.send(node_messages.Ordered(JOB, orders.Introduce()))
    stands = job.told[-1]
    assert isinstance(stands, NodeStands)
    assert stands.state is MemberState.JOINED


def excluded(job: OneNode) -> list[NodeExcluded]:
    return [each for each in job.told if isinstance(each, NodeExcluded)]


def test_a_node_whose_ranks_run_falls_ill_and_they_go_on() -> None:
    job = OneNode(rules(1), checks=REPEATED)
    job.send(node_messages.SpawnerReady(JOB, NOW), NodeChecked(JOB, "nvhcd", 1, WELL)).run_cycle(0)
    job.pass_to(PERIOD_S + 1.0)
    job.send(NodeChecked(JOB, "nvhcd", 2, ILL))
    assert (excluded(job), job.view().state) == ([], JobState.RUNNING)
