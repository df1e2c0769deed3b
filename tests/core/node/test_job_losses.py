"""What else may be lost while a fault is handled? A second rank, the store made ahead, the spawner, even its death."""

from __future__ import annotations

import pytest

from supervisor.core import orders
from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.cluster import coordinator
from supervisor.core.facts import Assignment, HangLimits, JobState, Verdict
from supervisor.core.node import node_messages
from supervisor.core.node.node_messages import (
    FinishJob,
    KillTree,
    PrepareStore,
    SpawnWorkers,
    StartSpawner,
    WorkersEmptied,
)
from tests.core.one_node import JOB, NOW, OneNode, hang, joined, rules, running

HEARTBEAT_5 = HangLimits(heartbeat_s=5.0)


def test_a_failure_during_a_hang_that_turns_out_to_be_none_is_the_fault() -> None:
    """Rank 2 dies while rank 1's silence is examined; rank 1 then exits with 0, so nothing was an echo of it."""
    job = joined(running(rules(3, hang_limits=HEARTBEAT_5)), 0, 1, 2)
    hang(job, 1, at=5.0)
    job.exit(0, 2, code=3)
    assert job.view().state is JobState.RUNNING
    job.exit(0, 1, code=0)
    assert job.view().state is JobState.RESTARTING
    assert coordinator.restarts_used(job.coordinator) == 1
    assert job.said("restart_decided")[0].startswith("rank 2 (pid 102) failed with exit code 3; restarting")


def test_a_store_that_fails_during_such_a_hang_is_the_fault() -> None:
    job = joined(running(rules(2, hang_limits=HEARTBEAT_5)), 0, 1)
    hang(job, 1, at=5.0)
    job.send(node_messages.StoreFailed(JOB, 0, "the store host was killed"))
    job.exit(0, 1, code=0)
    assert job.said("restart_decided")[0].startswith("the store of cycle 0 failed: the store host was killed")


def test_a_store_that_was_prepared_by_a_spawner_that_is_lost_is_not_used() -> None:
    job = running(rules(1, prepares_ahead=True)).exit(0, 0, code=1)
    assert job.of(PrepareStore) == [PrepareStore(JOB, 1)]
    job.send(node_messages.StoreReady(JOB, 1, "h", 30001), WorkersEmptied(JOB, 0))
    assert [each.store_port for each in job.of(SpawnWorkers)] == [30001]
    job = running(rules(1, prepares_ahead=True)).exit(0, 0, code=1)
    job.send(
        node_messages.StoreReady(JOB, 1, "h", 30001), node_messages.SpawnerLost(JOB, NOW, "it was killed by SIGKILL")
    )
    job.send(node_messages.SpawnerReady(JOB, NOW))
    assert (job.of(PrepareStore), job.of(SpawnWorkers)) == ([PrepareStore(JOB, 1)], [])
    assert coordinator.restarts_used(job.coordinator) == 1


def test_a_store_that_could_not_be_prepared_ahead_is_asked_for_again() -> None:
    job = running(rules(1, prepares_ahead=True)).exit(0, 0, code=1)
    job.send(node_messages.StoreFailed(JOB, 1, "no port is free"), WorkersEmptied(JOB, 0))
    assert job.actions[-1] == PrepareStore(JOB, 1)
    assert coordinator.restarts_used(job.coordinator) == 1


def test_a_spawner_lost_after_the_work_was_done_changes_nothing_of_the_success() -> None:
    job = running(rules(1)).exit(0, 0, code=0)
    job.send(node_messages.SpawnerLost(JOB, NOW, "it was killed by SIGKILL"))
    assert job.view().state is JobState.SUCCEEDED


def test_a_node_that_is_done_and_has_lost_its_spawner_still_says_that_it_has_stopped() -> None:
    """It waits for the other node's ranks; nothing is left that could answer a KillTree."""
    job = running(rules(1))
    job.coordinator = coordinator.initial_state(JOB)  # says nothing by itself: the other node still runs
    job.exit(0, 0, code=0)
    job.send(node_messages.SpawnerLost(JOB, NOW, "it was killed by SIGKILL"))
    job.send(node_messages.Ordered(JOB, orders.WindDown("all ranks exited with code 0")))
    assert job.told[-1] == cluster.NodeStopped("a", all_succeeded=True)
    job.send(node_messages.Ordered(JOB, orders.Conclude(Verdict(JobState.SUCCEEDED, 0, "done"))))
    assert job.of(FinishJob)


def test_a_spawner_that_is_not_the_newest_is_not_heard() -> None:
    job = running(rules(1)).send(node_messages.SpawnerLost(JOB, NOW, "gone"))
    before = job.state
    job.send(node_messages.SpawnerReady(JOB, 1), node_messages.SpawnerLost(JOB, 1, "gone again"))
    assert (job.state, job.actions) == (before, [])


def test_a_spawner_that_cannot_be_killed_is_given_up_and_the_job_goes_on() -> None:
    job = running(rules(1)).exit(0, 0, code=1)
    assert job.actions == [KillTree(JOB, 0)]
    job.pass_to(15.0)
    assert [type(each) for each in job.actions] == [node_messages.KillSpawner]
    job.pass_to(40.0)
    assert job.actions == [StartSpawner(JOB, 2)]
    assert coordinator.restarts_used(job.coordinator) == 1


def in_group_rank_1() -> OneNode:
    """A node whose store was asked for ahead, and which another node's store then takes over."""
    job = running(rules(1, prepares_ahead=True)).exit(0, 0, code=1)
    assert job.of(PrepareStore) == [PrepareStore(JOB, 1)]
    moved = orders.StartCycle(Assignment(1, group_rank=1, group_world_size=2, world_size=2, first_rank=1), "moved")
    return job.send(node_messages.Ordered(JOB, moved), WorkersEmptied(JOB, 0))


def test_a_store_made_ahead_is_not_used_where_another_node_serves_the_cycle() -> None:
    job = in_group_rank_1().send(node_messages.StoreReady(JOB, 1, "here", 30001))
    assert job.of(SpawnWorkers) == []
    job.send(node_messages.Ordered(JOB, orders.UseStore(1, "there", 30002)))
    assert [(each.store_host, each.store_port) for each in job.of(SpawnWorkers)] == [("there", 30002)]


def test_the_end_of_a_store_that_nobody_uses_is_no_fault() -> None:
    job = in_group_rank_1().send(node_messages.StoreReady(JOB, 1, "here", 30001))
    job.send(
        node_messages.Ordered(JOB, orders.UseStore(1, "there", 30002)), node_messages.WorkerSpawned(JOB, 1, 0, 100)
    )
    job.send(node_messages.StoreFailed(JOB, 1, "the store host was killed"))
    assert job.said("store_failed") == []
    assert job.view().state is JobState.RUNNING


@pytest.mark.parametrize(
    ("is_running", "said"), [(False, ["running again after 0.50 s, cycle 3, restarts 2 of 3"]), (True, [])]
)
def test_a_spare_that_steps_in_counts_from_the_loss_that_it_makes_good(*, is_running: bool, said: list[str]) -> None:
    """Not from the end of the cycle in which it took part itself; the others that have gone on were never down."""
    job = running(rules(1)).pass_to(10.0).exit(0, 0, code=1)
    job.coordinator = coordinator.initial_state(JOB)  # says nothing by itself: cycles 1 and 2 run on other nodes
    job.send(WorkersEmptied(JOB, 0)).pass_to(1000.0)
    if not is_running:
        job.send(node_messages.Ordered(JOB, orders.JoinAgain(3, "rank 1 failed on another node")))
    job.pass_to(1000.5)
    job.send(node_messages.Ordered(JOB, orders.StartCycle(Assignment(3), "go", 2, is_running=is_running)))
    assert job.run_cycle(3).said("running_again") == said


def test_a_node_keeps_the_verdict_until_its_ranks_are_gone_also_under_another_leader() -> None:
    """It learns the verdict from a leader of the next run, which knows nothing of this node's ranks."""
    job = running(rules(1))
    job.coordinator = coordinator.initial_state(JOB)  # says nothing by itself
    lost = Verdict(JobState.FAILED, 1, "node a is lost")
    job.send(node_messages.Ordered(JOB, orders.Conclude(lost)))
    assert not job.of(FinishJob)
    job.send(node_messages.Ordered(JOB, orders.WindDown("another order")))
    job.exit(0, 0, code=1).send(WorkersEmptied(JOB, 0))
    assert job.told[-1] == cluster.VerdictTaken("a")
    assert job.said("job_failed") == [lost.reason]
