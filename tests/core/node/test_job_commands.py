"""What people and ranks want, with all machines of the job and its coordinator."""

from __future__ import annotations

import signal as signals

import pytest

from supervisor.core.cluster import coordinator
from supervisor.core.facts import HangLimits, JobState, RendezvousRules
from supervisor.core.node import node_messages
from supervisor.core.node.job_state_report import state_report
from supervisor.core.node.node_messages import (
    CollectEvidence,
    PrepareStore,
    SignalWorkers,
    StopRequested,
    WorkersEmptied,
)  # fmt: skip
from tests.core.one_node import JOB, hang, in_back_off, in_first_cycle, joined, rules, running

SIGTERM = int(signals.SIGTERM)
SIGINT = int(signals.SIGINT)
TERM_ALL = SignalWorkers(JOB, 0, SIGTERM, resume=True, grace_s=15.0)


def test_a_restart_by_a_person_takes_no_unit() -> None:
    job = in_first_cycle().send(node_messages.RestartRequested(JOB, "new code"))
    assert job.actions == [TERM_ALL]
    job.exit(0, 0, signal=SIGTERM).exit(0, 1, signal=SIGTERM).send(WorkersEmptied(JOB, 0))
    assert job.actions == [PrepareStore(JOB, 1)]
    assert coordinator.restarts_used(job.coordinator) == 0


def test_a_restart_by_a_person_ends_a_back_off() -> None:
    job = in_back_off()
    job.send(node_messages.RestartRequested(JOB, "new code"))
    assert job.actions == [PrepareStore(JOB, 6)]


def test_a_restart_of_a_job_that_ends_is_refused() -> None:
    job = in_first_cycle().send(StopRequested(JOB, "signalled", SIGINT))
    job.send(node_messages.RestartRequested(JOB, "new code"))
    assert job.said("restart_refused") == ["cannot restart: the job is ending; signalled"]


def test_continue_is_an_event_only() -> None:
    job = in_first_cycle()
    job.send(node_messages.ControlRequested(JOB, 0, 1, "continue", "nan seen"))
    assert (job.actions, job.said("control_requested")) == ([], ["rank 1 asked to continue: nan seen"])
    job.exit(0, 0, code=1)
    assert coordinator.restarts_used(job.coordinator) == 1


@pytest.mark.parametrize("action", ["shutdown_workload", "exclude_this_node"])
def test_a_wish_takes_effect_at_the_next_fault(action: str) -> None:
    job = in_first_cycle()
    job.send(node_messages.ControlRequested(JOB, 0, 1, action, "loss is nan"))
    assert job.actions == []
    job.exit(0, 0, code=1).exit(0, 1, signal=SIGTERM).send(WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert (verdict.state, verdict.exit_code) == (JobState.FAILED, 93 if action == "shutdown_workload" else 1)
    assert "rank 1 asked to" in verdict.reason
    assert "loss is nan" in verdict.reason
    assert coordinator.restarts_used(job.coordinator) == 0


def test_a_wish_to_shut_down_does_not_spoil_a_success() -> None:
    job = in_first_cycle()
    job.send(node_messages.ControlRequested(JOB, 0, 1, "shutdown_workload", "done"))
    job.exit(0, 0, code=0).exit(0, 1, code=0).send(WorkersEmptied(JOB, 0))
    assert job.view().state is JobState.SUCCEEDED


def test_calculated_limits_hold_for_all_ranks_and_later_cycles() -> None:
    job = joined(running(rules(2, hang_limits=HangLimits(heartbeat_s=100.0, warm_up_steps=7))), 0, 1)
    calculated = HangLimits(heartbeat_s=5.0)
    for local_rank in (0, 1):
        job.send(node_messages.LimitsCalculated(JOB, 0, local_rank, calculated))
    assert len(job.said("limits_calculated")) == 1
    assert job.view().limits == calculated
    job.exit(0, 0, code=1).exit(0, 1, signal=SIGTERM).send(WorkersEmptied(JOB, 0))
    joined(job.run_cycle(1), 0, 1, cycle=1)
    assert [each.limits for each in job.view().ranks] == [HangLimits(heartbeat_s=5.0, warm_up_steps=7)] * 2
    hang(job, 0, at=5.0, cycle=1)
    assert job.of(CollectEvidence)


def test_a_rank_is_judged_by_new_limits_once_it_has_told_them_itself() -> None:
    """Its last frame may be older than the agreement of all ranks."""
    job = joined(running(rules(2, hang_limits=HangLimits(heartbeat_s=100.0))), 0, 1)
    job.send(node_messages.LimitsCalculated(JOB, 0, 0, HangLimits(heartbeat_s=5.0)))
    hang(job, 1, at=50.0)
    assert not job.of(CollectEvidence)
    job.send(node_messages.LimitsCalculated(JOB, 0, 1, HangLimits(heartbeat_s=5.0)))
    hang(job, 1, at=51.0)
    assert job.of(CollectEvidence)


def test_a_stop_of_a_job_on_several_nodes_says_where_it_was_asked_for() -> None:
    job = in_first_cycle()
    assert job.send(StopRequested(JOB, "holdfast stop by kim", 0)).said("stop_requested") == ["holdfast stop by kim"]
    job = joined(running(rules(2, rendezvous=RendezvousRules(max_nodes=2))), 0, 1)
    job.send(StopRequested(JOB, "holdfast stop by kim", 0))
    assert job.said("stop_requested") == ["holdfast stop by kim on node a"]


def test_a_node_remembers_that_it_is_kept_out_for_leaders_to_come() -> None:
    job = in_first_cycle()
    job.send(node_messages.CordonRequested(JOB, "a bad fan"))
    job.send(node_messages.ControlRequested(JOB, 0, 1, "exclude_this_node", "ECC errors"))
    stands = state_report(job.state.jobs[JOB].job)
    assert (stands.cordoned, "ECC errors" in stands.excluded) == ("a bad fan", True)
    job.send(node_messages.CordonRequested(JOB, ""))
    assert state_report(job.state.jobs[JOB].job).cordoned == ""
