"""What follows when nothing of a cycle is left: each thing that was planned, with and without a spawner."""

from __future__ import annotations

import pytest

from supervisor.core import job_phases as phases
from supervisor.core.cluster import messages as cluster_messages
from supervisor.core.facts import Assignment, JobRules, JobState, Verdict
from supervisor.core.node import job_moves, messages
from supervisor.core.workers import WorkersGone

NEXT = Assignment(cycle=4)
FAILED = Verdict(JobState.FAILED, 1, "rank 0 failed; restarts used 1 of 1")


def stopping(then: phases.Then, *, has_spawner: bool = True, first_failure: str = "") -> phases.State:
    return phases.State(
        "n0", JobRules("j", 2), phases.Stopping(then), 3, "why", has_spawner=has_spawner, first_failure=first_failure
    )


@pytest.mark.parametrize(
    ("then", "has_spawner", "phase", "order"),
    [
        (phases.Rejoin(announced=False), True, phases.Rendezvous, messages.TellCoordinator),
        (phases.Rejoin(announced=True), False, phases.Pending, messages.StartSpawner),
        (phases.Rejoin(announced=False), False, phases.Down, None),
        (phases.StartNext(NEXT, "why"), True, phases.AwaitingStore, messages.PrepareStore),
        (phases.StartNext(NEXT, "why"), False, phases.Down, messages.TellCoordinator),
        (phases.Finish(FAILED), True, phases.Ended, messages.EndSpawner),
        (phases.Finish(FAILED), False, phases.Ended, messages.FinishJob),
        (phases.FinishStopped(15, "why"), True, phases.AwaitingVerdict, messages.TellCoordinator),
    ],
)
def test_what_was_planned_follows(
    then: phases.Then, has_spawner: bool, phase: type[phases.Phase], order: type[job_moves.Action] | None
) -> None:
    state, actions = job_moves.leave_stopping(
        stopping(then, has_spawner=has_spawner), WorkersGone("", False, ()), now_s=9.0
    )
    assert type(state.phase) is phase
    assert order is None or any(type(action) is order for action in actions)
    starts = any(isinstance(action, messages.StartSpawner) for action in actions)
    assert starts == (order is messages.StartSpawner)
    assert isinstance(actions[0], messages.Publish)
    assert actions[0].event.reason == "nothing of cycle 3 is left on n0"


def test_the_root_cause_takes_the_place_of_what_was_seen_first() -> None:
    state = stopping(phases.Finish(FAILED), first_failure="rank 0 failed")
    state, actions = job_moves.leave_stopping(state, WorkersGone("rank 1 failed", False, ()), now_s=9.0)
    assert state.phase == phases.Ended(Verdict(JobState.FAILED, 1, "rank 1 failed; restarts used 1 of 1"))
    assert any(isinstance(action, messages.Publish) and action.event.kind == "root_cause_found" for action in actions)


def test_a_shutdown_that_a_rank_asked_for_forbids_the_restart() -> None:
    state = phases.State("n0", JobRules("j", 2), phases.Running(), 3, shutdown="rank 0 asked to shut the workload down")
    _, actions = job_moves.fault(state, "rank 1 failed")
    reason = "rank 0 asked to shut the workload down; then rank 1 failed"
    told = cluster_messages.NodeFailed("n0", 3, reason, restart_allowed=False)
    assert actions[0] == messages.TellCoordinator("j", told)
