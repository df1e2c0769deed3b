"""The life of a job on one node, with its real neighbours, from every phase into every other."""

from __future__ import annotations

import signal as signals

import pytest

from supervisor.core import orders
from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.cluster import coordinator
from supervisor.core.facts import Assignment, Evidence, HangLimits, JobState, StackGroup, Verdict
from supervisor.core.node import node_messages
from supervisor.core.node.node_messages import (
    CollectEvidence,
    EndSpawner,
    FinishJob,
    KillTree,
    PrepareStore,
    SignalWorkers,
    SpawnWorkers,
    StartSpawner,
    StopRequested,
    WorkersEmptied,
)  # fmt: skip
from tests.core.one_node import JOB, NOW, OneNode, hang, joined, rules, running

SIGTERM = int(signals.SIGTERM)
SIGINT = int(signals.SIGINT)
SIGKILL = int(signals.SIGKILL)
TERM_ALL = SignalWorkers(JOB, 0, SIGTERM, resume=True, grace_s=15.0)
HEARTBEAT_5 = HangLimits(heartbeat_s=5.0)


# --- the plain way -------------------------------------------------------------------------------------------------


def test_from_submission_to_success() -> None:
    job = OneNode(rules(2))
    assert job.actions == [StartSpawner(JOB, 1)]
    assert job.view().state is JobState.PENDING
    job.send(node_messages.SpawnerReady(JOB, NOW))
    assert job.actions == [PrepareStore(JOB, 0)]
    assert job.view().state is JobState.STARTING
    job.send(node_messages.StoreReady(JOB, 0, "h", 7))
    assert [(each.store_host, each.store_port) for each in job.of(SpawnWorkers)] == [("h", 7)]
    job.send(node_messages.WorkerSpawned(JOB, 0, 0, 100), node_messages.WorkerSpawned(JOB, 0, 1, 101))
    assert job.view().state is JobState.RUNNING
    job.exit(0, 1, code=0)
    assert job.actions == []
    job.exit(0, 0, code=0)
    assert job.actions == [KillTree(JOB, 0)]  # what the workers left running
    job.send(WorkersEmptied(JOB, 0))
    verdict = Verdict(JobState.SUCCEEDED, 0, "all ranks exited with code 0")
    assert job.actions == [EndSpawner(JOB), FinishJob(JOB, verdict)]
    assert job.view().state is JobState.SUCCEEDED
    kinds = [event.kind for event in job.events]
    assert kinds == [
        "job_submitted", "cycle_started", "worker_started", "worker_started", "workers_started", "worker_exited",
        "worker_exited", "workers_stopping", "workers_stopped", "job_succeeded",
    ]  # fmt: skip


def test_a_failed_worker_restarts_all_and_the_coordinator_hears_of_it_before_anything_is_stopped() -> None:
    job = running(rules(2))
    before = len(job.told)
    job.exit(0, 1, signal=SIGKILL)
    assert isinstance(job.told[before], cluster.NodeFailed)
    assert job.actions == [TERM_ALL]
    assert job.view().state is JobState.RESTARTING
    assert job.said("restart_decided") == [
        "rank 1 (pid 101) was killed by SIGKILL; restarting at once, restarts used 1 of 3"
    ]
    job.exit(0, 0, signal=SIGTERM)
    assert job.actions == [KillTree(JOB, 0)]
    job.send(WorkersEmptied(JOB, 0))
    assert job.actions == [PrepareStore(JOB, 1)]
    job.run_cycle(1)
    assert (job.view().state, job.view().cycle) == (JobState.RUNNING, 1)
    assert len(job.said("worker_failed")) == 1


def test_an_exhausted_budget_ends_the_job_with_the_fault_in_its_reason() -> None:
    job = running(rules(2, max_restarts=0))
    job.exit(0, 0, code=3)
    assert job.view().state is JobState.STOPPING
    job.exit(0, 1, signal=SIGTERM)
    job.send(WorkersEmptied(JOB, 0))
    reason = "rank 0 (pid 100) failed with exit code 3; restarts used 0 of 0"
    assert job.of(FinishJob) == [FinishJob(JOB, Verdict(JobState.FAILED, 1, reason))]
    assert job.said("job_failed") == [reason]


def test_the_verdict_names_the_failure_that_came_first_not_the_exit_that_was_seen_first() -> None:
    job = running(rules(2, max_restarts=0))
    job.send(node_messages.WorkerExited(JOB, 0, job.ended(1, code=1, error_at=1010.0)))
    job.send(node_messages.WorkerExited(JOB, 0, job.ended(0, code=1, error_at=1009.0)))
    job.send(WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.reason == "rank 0 (pid 100) failed with exit code 1: boom; restarts used 0 of 0"
    assert len(job.said("root_cause_found")) == 1


def test_all_ranks_dying_at_once_are_one_fault() -> None:
    job = running(rules(4))
    for local_rank in range(4):
        job.exit(0, local_rank, signal=SIGKILL)
    assert coordinator.restarts_used(job.coordinator) == 1
    job.send(WorkersEmptied(JOB, 0))
    assert job.actions == [PrepareStore(JOB, 1)]


# --- faults around the start -----------------------------------------------------------------------------------------


def test_a_worker_that_cannot_be_started_is_a_fault_at_once() -> None:
    job = OneNode(rules(2, max_restarts=0)).send(
        node_messages.SpawnerReady(JOB, NOW), node_messages.StoreReady(JOB, 0, "h", 1)
    )
    job.send(node_messages.SpawnFailed(JOB, 0, 0, "cannot start x: no such file", 127))
    job.send(
        node_messages.WorkerSpawned(JOB, 0, 1, 101), node_messages.WorkerExited(JOB, 0, job.ended(1, signal=SIGTERM))
    )
    job.send(WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.reason == "rank 0 was not started: cannot start x: no such file; restarts used 0 of 0"


@pytest.mark.parametrize("is_running", [False, True])
def test_a_store_that_fails_is_a_fault(is_running: bool) -> None:
    job = running(rules(1)) if is_running else OneNode(rules(1)).send(node_messages.SpawnerReady(JOB, NOW))
    job.send(node_messages.StoreFailed(JOB, 0, "no port is free"))
    assert job.actions == ([TERM_ALL] if is_running else [KillTree(JOB, 0)])
    assert job.said("store_failed") == ["the store of cycle 0 failed: no port is free"]
    job.send(node_messages.StoreFailed(JOB, 0, "no port is free"))
    assert coordinator.restarts_used(job.coordinator) == 1


def test_a_spawner_that_never_comes_up_uses_the_budget_and_then_ends_the_job() -> None:
    job = OneNode(rules(1, max_restarts=2))
    for number in (2, 3):
        job.send(node_messages.SpawnerLost(JOB, NOW, "cannot start python4: no such file"))
        assert job.actions == [StartSpawner(JOB, number)]
    job.send(node_messages.SpawnerLost(JOB, NOW, "cannot start python4: no such file"))
    verdict = job.verdict()
    assert verdict is not None
    assert (verdict.exit_code, job.of(EndSpawner)) == (1, [])
    assert verdict.reason.endswith("no such file; restarts used 2 of 2")


def test_a_lost_spawner_takes_its_workers_and_one_unit() -> None:
    job = running(rules(2))
    job.send(node_messages.SpawnerLost(JOB, NOW, "it was killed by SIGKILL"))
    assert job.actions == [StartSpawner(JOB, 2)]
    (said,) = job.said("spawner_lost")
    assert said.endswith("; its workers end with it, and what they printed last may be lost")
    assert coordinator.restarts_used(job.coordinator) == 1
    job.send(node_messages.SpawnerReady(JOB, NOW))
    assert job.actions == [PrepareStore(JOB, 1)]


def test_a_spawner_lost_during_a_stop_belongs_to_the_same_round() -> None:
    job = running(rules(2))
    job.exit(0, 0, code=1)
    job.send(node_messages.SpawnerLost(JOB, NOW, "it was killed by SIGKILL"))
    assert job.actions == [StartSpawner(JOB, 2)]
    assert coordinator.restarts_used(job.coordinator) == 1


def test_what_an_older_cycle_reports_changes_nothing() -> None:
    job = running(rules(1))
    job.exit(0, 0, code=1)
    job.send(WorkersEmptied(JOB, 0))
    job.run_cycle(1)
    before = job.state
    job.exit(0, 0, code=1)
    job.send(
        node_messages.StoreFailed(JOB, 0, "late"),
        WorkersEmptied(JOB, 0),
        node_messages.SpawnFailed(JOB, 0, 0, "late", 1),
    )
    assert (job.state, job.actions) == (before, [])


def test_an_order_for_a_cycle_that_runs_or_is_over_changes_nothing() -> None:
    job = running(rules(1))
    before = job.state
    job.send(node_messages.Ordered(JOB, orders.StartCycle(Assignment(cycle=0), "again")))
    job.send(node_messages.Ordered(JOB, orders.JoinAgain(0, "again")))
    assert (job.state, job.actions) == (before, [])


def test_an_order_while_workers_run_starts_after_they_are_gone() -> None:
    job = running(rules(1))
    job.send(node_messages.Ordered(JOB, orders.StartCycle(Assignment(cycle=1), "moved")))
    assert job.actions == [TERM_ALL]
    job.exit(0, 0, signal=SIGTERM).send(WorkersEmptied(JOB, 0))
    assert job.actions == [PrepareStore(JOB, 1)]


def test_an_order_that_crossed_the_loss_of_the_spawner_is_answered_in_its_own_cycle() -> None:
    job = OneNode(rules(1))
    assignment = Assignment(cycle=4)
    told = len(job.told)
    job.send(node_messages.Ordered(JOB, orders.StartCycle(assignment, "go")))
    assert [each.cycle for each in job.told[told:] if isinstance(each, cluster.NodeFailed)] == [4]


# --- hangs ---------------------------------------------------------------------------------------------------------


def test_a_hang_is_examined_before_anything_is_signalled() -> None:
    job = joined(running(rules(2, hang_limits=HEARTBEAT_5)), 0, 1)
    hang(job, 1, at=5.0)
    assert job.actions == [CollectEvidence(JOB, 0, 0.25, (1,))]
    assert job.said("hang_detected") == ["rank 1 sent no heartbeat for 5.0 s (limit 5.0 s)"]
    assert job.view().state is JobState.RUNNING
    assert [each.state for each in job.view().ranks] == ["running", "hung"]
    evidence = Evidence(
        (StackGroup((1,), "data.py:8 in load"), StackGroup((0,), "ddp.py:2 in reduce")), source="py-spy"
    )
    job.send(node_messages.EvidenceCollected(JOB, 0, evidence), at=5.03)
    assert job.actions == [SignalWorkers(JOB, 0, SIGKILL, (1,), tree=False, resume=True), TERM_ALL]
    assert [each.state for each in job.view().ranks] == ["running", "hung"]  # also while it is being ended
    assert job.said("stacks_collected") == ["rank 1 stands in data.py:8 in load; rank 0 stands in ddp.py:2 in reduce"]
    assert job.said("restart_decided")[0].startswith("rank 1 sent no heartbeat for 5.0 s (limit 5.0 s); restarting")
    job.exit(0, 1, signal=SIGKILL).exit(0, 0, signal=SIGTERM)
    job.send(WorkersEmptied(JOB, 0))
    assert job.actions == [PrepareStore(JOB, 1)]
    assert coordinator.restarts_used(job.coordinator) == 1
    assert job.said("root_cause_found") == []


def test_evidence_that_does_not_come_is_not_waited_for() -> None:
    job = joined(running(rules(1, hang_limits=HEARTBEAT_5)), 0)
    hang(job, 0, at=5.0)
    job.pass_to(5.3)
    assert job.actions == []
    job.pass_to(5.4)
    assert job.of(SignalWorkers)[0].local_ranks == (0,)
    assert len(job.said("stacks_missing")) == 1
    job.send(node_messages.EvidenceCollected(JOB, 0, Evidence((StackGroup((0,), "x"),))))
    assert job.actions == []
    assert len(job.said("stacks_collected")) == 1


def test_several_hung_ranks_are_one_fault_and_what_fails_meanwhile_is_an_echo() -> None:
    job = joined(running(rules(3, hang_limits=HEARTBEAT_5)), 0, 1, 2)
    hang(job, 0, 1, at=5.0)
    job.exit(0, 2, signal=int(signals.SIGABRT))
    assert job.actions == []
    job.send(node_messages.EvidenceCollected(JOB, 0, Evidence()))
    assert job.of(SignalWorkers)[0].local_ranks == (0, 1)
    assert coordinator.restarts_used(job.coordinator) == 1
    assert job.view().reason.startswith("rank 0 sent no heartbeat for 5.0 s (limit 5.0 s); rank 1 sent no")


def test_a_gentle_termination_signal_is_escalated() -> None:
    gentle = int(signals.SIGUSR1)
    job = joined(running(rules(2, hang_limits=HEARTBEAT_5, rank_termination_signal=gentle)), 0, 1)
    hang(job, 1, at=5.0)
    job.send(node_messages.EvidenceCollected(JOB, 0, Evidence()))
    assert job.actions == [SignalWorkers(JOB, 0, gentle, (1,), tree=False, resume=True)]
    job.pass_to(6.9)
    assert job.actions == []
    job.pass_to(7.1)
    assert SignalWorkers(JOB, 0, SIGKILL, (1,), tree=True) in job.actions
    assert job.view().state is JobState.RESTARTING


def test_a_rank_that_answers_its_gentle_signal_is_still_a_fault() -> None:
    job = joined(running(rules(1, hang_limits=HEARTBEAT_5, rank_termination_signal=SIGTERM)), 0)
    hang(job, 0, at=5.0)
    job.send(node_messages.EvidenceCollected(JOB, 0, Evidence()))
    job.exit(0, 0, code=0)
    assert job.actions == [KillTree(JOB, 0)]
    job.send(WorkersEmptied(JOB, 0))
    assert job.actions == [PrepareStore(JOB, 1)]


def test_a_rank_that_finishes_before_it_is_ended_was_no_hang() -> None:
    job = joined(running(rules(2, hang_limits=HEARTBEAT_5)), 0, 1)
    hang(job, 1, at=5.0)
    job.exit(0, 1, code=0)
    assert job.said("hang_ended") == ["rank 1 exited with code 0 before it was ended for its hang"]
    job.send(node_messages.EvidenceCollected(JOB, 0, Evidence()))
    assert job.of(SignalWorkers) == []
    job.exit(0, 0, code=0).send(WorkersEmptied(JOB, 0))
    assert job.view().state is JobState.SUCCEEDED


def test_ranks_that_are_being_stopped_cannot_hang() -> None:
    job = joined(running(rules(2, hang_limits=HEARTBEAT_5)), 0, 1)
    job.send(StopRequested(JOB, "signalled", SIGTERM), at=4.0)
    job.pass_to(1000.0)
    assert job.actions == []
    assert job.said("hang_detected") == []


# --- processes that do not die ---------------------------------------------------------------------------------------


def test_processes_in_state_d_do_not_wedge_a_restart() -> None:
    job = running(rules(2)).exit(0, 1, code=1)
    job.pass_to(15.0)
    assert job.of(KillTree) == [KillTree(JOB, 0)]
    job.send(WorkersEmptied(JOB, 0, stuck_pids=(100,)))
    assert job.actions == [PrepareStore(JOB, 1)]
    assert "100" in job.said("workers_stuck")[0]


# --- what can't be run, and how long a restart took ----------------------------------------------------------------


def test_a_command_that_can_not_be_run_ends_the_job_at_once_whatever_the_budget() -> None:
    job = OneNode(rules(2, max_restarts=3))
    job.send(node_messages.SpawnerReady(JOB, NOW, refusal="cannot run x.py: no such file", refusal_code=2))
    verdict = Verdict(JobState.FAILED, 2, "cannot run x.py: no such file")
    assert job.actions == [EndSpawner(JOB), FinishJob(JOB, verdict)]
    assert job.said("job_failed") == [verdict.reason]


def test_each_restart_says_after_how_long_the_workers_run_again() -> None:
    job = running(rules(2))
    assert job.said("running_again") == []
    job.pass_to(10.0).exit(0, 1, signal=SIGKILL)
    job.exit(0, 0, signal=SIGTERM)
    job.pass_to(10.25).send(WorkersEmptied(JOB, 0)).run_cycle(1)
    assert job.said("running_again") == ["running again after 0.25 s, cycle 1, restarts 1 of 3"]
