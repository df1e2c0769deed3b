"""Several jobs in one step, fences, deadlines, and the status shown."""

from __future__ import annotations

import signal as signals

import pytest

from supervisor.core import orders
from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.facts import HangLimits, JobRules, JobState, Progress, Verdict
from supervisor.core.node import node, node_messages
from tests.core.one_node import JOB, NOW, OneNode, rules, running


def test_jobs_do_not_know_each_other() -> None:
    state = node.initial_state("a")
    for job_id in ("x", "y"):
        state, actions = node.step(state, node_messages.JobSubmitted(JobRules(job_id, 1)), now_s=0.0)
        assert {action.job_id for action in actions} == {job_id}
    before = state.jobs["y"]
    state, actions = node.step(state, node_messages.SpawnerLost("x", 1, "gone"), now_s=1.0)
    assert state.jobs["y"] is before
    assert {action.job_id for action in actions} == {"x"}


def test_what_concerns_no_known_job_is_dropped() -> None:
    state = node.initial_state("a")
    assert node.step(state, node_messages.SpawnerReady("nobody", 1), now_s=0.0) == (state, ())
    assert node.view(state, "nobody") is None
    assert node.next_deadline_s(state) is None


def test_a_live_job_is_not_submitted_twice_and_an_ended_one_may_be() -> None:
    job = running(rules(1))
    before = job.state
    job.send(node_messages.JobSubmitted(rules(1)))
    assert (job.state, job.actions) == (before, [])
    job.exit(0, 0, code=0).send(node_messages.WorkersEmptied(JOB, 0))
    assert job.view().state is JobState.SUCCEEDED
    job.send(node_messages.JobSubmitted(rules(1)))
    assert job.view().state is JobState.PENDING


def test_ended_jobs_are_kept_for_a_while_and_bounded() -> None:
    state = node.initial_state("a")
    for number in range(node.ENDED_JOBS_MAX + 5):
        state, _ = node.step(state, node_messages.JobSubmitted(JobRules(f"job{number}", 1)), now_s=0.0)
        conclude = orders.Conclude(Verdict(JobState.FAILED, 1, "x"))
        state, _ = node.step(state, node_messages.Ordered(f"job{number}", conclude), now_s=0.0)
        state, _ = node.step(state, node_messages.SpawnerLost(f"job{number}", 1, "ended"), now_s=0.0)
    assert len(state.jobs) == node.ENDED_JOBS_MAX + 1
    assert node.view(state, "job0") is None


def test_the_next_deadline_is_the_earliest_of_all_ranks() -> None:
    job = running(rules(2, hang_limits=HangLimits(heartbeat_s=10.0)))
    assert node.next_deadline_s(job.state) == 10.0  # when a heartbeat should have armed it
    for local_rank, beat_s in ((0, 5.0), (1, 3.0)):
        progress = Progress(0.0, 0.0, heartbeat_at_s=beat_s, heartbeats=1)
        job.send(node_messages.ClientJoined(JOB, 0, local_rank, job.rules.hang_limits, progress))
    assert node.next_deadline_s(job.state) == 13.0
    job.send(node_messages.DeadlineReached(), at=12.9)
    assert job.actions == []
    job.send(node_messages.DeadlineReached(), at=13.0)
    assert job.actions == [node_messages.ReadProgress(JOB, 0, 1)]
    job.send(node_messages.ClientLeft(JOB, 0, 1))
    assert node.next_deadline_s(job.state) == 15.0


def test_a_rank_that_the_job_does_not_have_is_ignored() -> None:
    job = running(rules(1))
    before = job.state
    job.send(
        node_messages.ClientJoined(JOB, 0, 7, HangLimits(), Progress(0.0, 0.0)),
        node_messages.WorkerSpawned(JOB, 0, 7, 1),
    )
    assert job.state == before


def test_each_request_of_a_rank_is_accepted_once_whatever_follows_from_it() -> None:
    """Its client sends it again on a new connection until it is accepted, perhaps by the next supervisor."""
    job = running(rules(2))

    def ask(action: str, number: int, *, cycle: int = 0) -> None:
        job.send(node_messages.ControlRequested(JOB, cycle, 1, action, "bad loss", number))
        assert job.of(node_messages.TellRanks) == [
            node_messages.TellRanks(JOB, cycle, (1,), node_messages.Accepted(number))
        ]

    ask("continue", 1)
    ask("exclude_this_node", 2)
    ask("shutdown_workload", 3)
    asked = job.state
    ask("shutdown_workload", 3)
    assert job.state == asked
    ask("continue", 4, cycle=7)
    job.send(node_messages.StopRequested(JOB, "enough"))
    ask("continue", 5)
    job.exit(0, 0, code=0).exit(0, 1, code=0).send(node_messages.WorkersEmptied(JOB, 0))
    assert job.verdict() is not None
    ask("continue", 6)
    job.send(node_messages.ControlRequested(JOB, 0, 1, "continue", "kept by an earlier version"))
    assert job.actions == []


def test_the_view_of_ranks_through_a_cycle() -> None:
    job = OneNode(rules(4)).send(node_messages.SpawnerReady(JOB, NOW))
    assert job.view().ranks == ()
    job.run_cycle(0)
    assert [each.state for each in job.view().ranks] == ["running"] * 4
    job.exit(0, 0, code=0).exit(0, 1, code=7)
    job.exit(0, 2, signal=int(signals.SIGTERM))
    assert [each.state for each in job.view().ranks] == ["exited", "failed", "stopped", "running"]
    assert [each.pid for each in job.view().ranks] == [100, 101, 102, 103]
    job.pass_to(20.0)
    job.send(node_messages.WorkersEmptied(JOB, 0, stuck_pids=(103,)))
    job.send(node_messages.StoreReady(JOB, 1, "h", 1), node_messages.WorkerSpawned(JOB, 1, 0, 200))
    assert [each.state for each in job.view().ranks] == ["running", "starting", "starting", "starting"]
    view = job.view()
    assert (view.cycle, view.cycle_started_at_s, view.verdict) == (1, 20.0, None)


def test_a_defect_after_the_verdict_changes_nothing_of_it() -> None:
    verdict = Verdict(JobState.SUCCEEDED, 0, "all ranks exited with code 0")
    state, _ = node.step(node.initial_state("a"), node_messages.JobSubmitted(rules(1)), now_s=0.0)
    state, _ = node.step(state, node_messages.Ordered(JOB, orders.Conclude(verdict)), now_s=1.0)
    state, actions = node.step(state, node_messages.JobAbandoned(JOB, "Holdfast hit a defect of its own"), now_s=2.0)
    assert node_messages.FinishJob(JOB, verdict) in actions
    view = node.view(state, JOB)
    assert view is not None
    assert view.verdict == verdict


def test_a_defect_in_one_job_ends_that_job_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    state = node.initial_state("a")
    for job_id in ("x", "y"):
        state, _ = node.step(state, node_messages.JobSubmitted(JobRules(job_id, 1)), now_s=0.0)

    def broken(*_: object, **__: object) -> None:
        raise AssertionError("no such phase")

    with monkeypatch.context() as patched:
        patched.setattr(node.job, "step", broken)
        state, actions = node.step(state, node_messages.SpawnerReady("x", 1), now_s=1.0)
    told = [action.report for action in actions if isinstance(action, node_messages.TellCoordinator)]
    assert [type(report) for report in told] == [cluster.NodeFailed, cluster.NodeStopped, cluster.VerdictTaken]
    others = [type(action) for action in actions if not isinstance(action, node_messages.TellCoordinator)]
    assert others == [node_messages.Publish, node_messages.KillSpawner, node_messages.FinishJob]
    assert {action.job_id for action in actions} == {"x"}
    view = node.view(state, "x")
    assert view is not None
    assert view.verdict is not None
    assert "AssertionError: no such phase" in view.verdict.reason
    state, actions = node.step(state, node_messages.SpawnerReady("y", 1), now_s=1.0)
    assert any(isinstance(action, node_messages.TellCoordinator) for action in actions)
    assert node.step(state, node_messages.JobAbandoned("x", "again"), now_s=2.0) == (state, ())
