"""What follows when nothing of a cycle is left, and what is prepared ahead?"""

from __future__ import annotations

import msgspec
import pytest

from supervisor.core import job_phases as phases
from supervisor.core.cluster import cluster_messages
from supervisor.core.facts import Assignment, Cause, JobRules, JobState, Verdict
from supervisor.core.node import node_messages, phase_transitions
from supervisor.core.worker_messages import StartWorkers, WorkersGone

NEXT = Assignment(cycle=4)
CAUSE = Cause("rank 1 failed")


def stopping(then: phases.Then, *, has_spawner: bool = True) -> phases.State:
    return phases.State("n0", JobRules("j", 2), phases.Stopping(then), 3, "why", has_spawner=has_spawner, spawners=1)


@pytest.mark.parametrize(
    ("then", "has_spawner", "phase", "order"),
    [
        (phases.Rejoin(announced=False), True, phases.Rendezvous, node_messages.TellCoordinator),
        (phases.Rejoin(announced=True), False, phases.Pending, node_messages.StartSpawner),
        (phases.Rejoin(announced=False), False, phases.Down, node_messages.TellCoordinator),
        (phases.StartNext(NEXT, "why"), True, phases.AwaitingStore, node_messages.PrepareStore),
        (phases.StartNext(NEXT, "why"), False, phases.Down, node_messages.TellCoordinator),
        (phases.Leave(), True, phases.Stopped, node_messages.TellCoordinator),
        (phases.Leave(), False, phases.Stopped, node_messages.TellCoordinator),
    ],
)
def test_what_was_planned_follows(
    then: phases.Then, has_spawner: bool, phase: type[phases.Phase], order: type[phase_transitions.Action] | None
) -> None:
    state, actions = phase_transitions.leave_stopping(
        stopping(then, has_spawner=has_spawner), WorkersGone(None, False, ()), now_s=9.0
    )
    assert type(state.phase) is phase
    assert order is None or any(type(action) is order for action in actions)
    starts = any(isinstance(action, node_messages.StartSpawner) for action in actions)
    assert starts == (order is node_messages.StartSpawner)
    assert isinstance(actions[0], node_messages.Publish)
    assert actions[0].event.reason == "nothing of cycle 3 is left on n0"


@pytest.mark.parametrize(
    ("then", "report"),
    [
        (phases.Rejoin(announced=True), cluster_messages.NodeJoined("n0", 3, CAUSE)),
        (phases.Leave(), cluster_messages.NodeStopped("n0", all_succeeded=False, cause=CAUSE)),
    ],
)
def test_the_coordinator_hears_which_failure_came_first_here(then: phases.Then, report: cluster_messages.Event) -> None:
    _, actions = phase_transitions.leave_stopping(stopping(then), WorkersGone(CAUSE, False, ()), now_s=9.0)
    assert node_messages.TellCoordinator("j", report) in actions


@pytest.mark.parametrize(
    ("then", "cycle"),
    [
        (phases.Rejoin(announced=False), 3),
        (phases.Rejoin(announced=True), 3),
        (phases.StartNext(NEXT, "why"), NEXT.cycle),
    ],
)
def test_the_coordinator_hears_that_nothing_is_left_where_the_spawner_is_lost(then: phases.Then, cycle: int) -> None:
    _, actions = phase_transitions.leave_stopping(
        stopping(then, has_spawner=False), WorkersGone(None, False, ()), now_s=9.0
    )
    told = [action.report for action in actions if isinstance(action, node_messages.TellCoordinator)]
    assert told[-1] == cluster_messages.NodeDown("n0", cycle)


def test_a_shutdown_that_a_rank_asked_for_forbids_the_restart() -> None:
    state = phases.State("n0", JobRules("j", 2), phases.Running(), 3, shutdown="rank 0 asked to shut the workload down")
    _, actions = phase_transitions.fault(state, "rank 1 failed")
    reason = "rank 0 asked to shut the workload down; then rank 1 failed"
    told = cluster_messages.NodeFailed("n0", 3, reason, restart_allowed=False, exit_code=93)
    assert actions[0] == node_messages.TellCoordinator("j", told)


# --- what is made ready ahead --------------------------------------------------------------------------------------


def ready(*, group_rank: int = 0, **changed: object) -> phases.State:
    rules = JobRules("j", 2, prepares_ahead=True, forks_ahead=True)
    state = phases.State("n0", rules, phases.Running(), 3, has_spawner=True, spawners=1)
    assignment = Assignment(3, group_rank=group_rank, group_world_size=2, world_size=4, first_rank=2 * group_rank)
    return msgspec.structs.replace(state, assignment=assignment, **changed)


def test_the_node_that_serves_the_store_prepares_the_next_and_every_node_forks_ahead() -> None:
    fork = node_messages.ForkAhead("j", 4, 2)
    state, actions = phase_transitions.prepare_ahead(ready(), 4)
    assert actions == (node_messages.PrepareStore("j", 4), fork)
    assert phase_transitions.prepare_ahead(state, 4)[1] == (fork,), "a store is asked for once"
    assert phase_transitions.prepare_ahead(ready(group_rank=1), 4)[1] == (fork,)


def test_nothing_is_made_ready_without_a_spawner_or_where_the_port_is_fixed() -> None:
    assert phase_transitions.prepare_ahead(ready(has_spawner=False), 4)[1] == ()
    assert phase_transitions.prepare_ahead(ready(rules=JobRules("j", 2)), 4)[1] == ()


@pytest.mark.parametrize("store", [None, phases.Store(3, "h", 7), phases.Store(4), phases.Store(4, "h", 8)])
def test_a_cycle_begins_with_the_store_that_was_prepared_for_it(store: phases.Store | None) -> None:
    state, actions = phase_transitions.begin(ready(store=store), NEXT, "go", now_s=9.0)
    asked = any(isinstance(action, node_messages.PrepareStore) for action in actions)
    assert asked == (store is None or store.cycle == 3)
    starts = [action for action in actions if isinstance(action, StartWorkers)]
    assert starts == ([StartWorkers(NEXT, "h", 8)] if store is not None and store.port == 8 else [])
    assert type(state.phase) is (phases.Starting if starts else phases.AwaitingStore)


def test_another_node_serves_the_store_and_the_coordinator_says_where() -> None:
    part = Assignment(4, group_rank=1, group_world_size=2, world_size=4, first_rank=2)
    state, actions = phase_transitions.begin(ready(group_rank=1), part, "go", now_s=9.0)
    assert not any(isinstance(action, node_messages.PrepareStore) for action in actions)
    _, actions = phase_transitions.use_store(state, "n0.cluster", 29500)
    assert actions == (StartWorkers(part, "n0.cluster", 29500),)


def test_the_node_that_serves_tells_the_others() -> None:
    part = Assignment(4, group_rank=0, group_world_size=2, world_size=4)
    state, _ = phase_transitions.begin(ready(), part, "go", now_s=9.0)
    _, actions = phase_transitions.use_store(state, "n0.cluster", 29500)
    served = cluster_messages.StoreServed("n0", 4, "n0.cluster", 29500)
    assert actions == (node_messages.TellCoordinator("j", served), StartWorkers(part, "n0.cluster", 29500))


def test_a_job_is_finished_once_its_spawner_is_gone() -> None:
    verdict = Verdict(JobState.FAILED, 1, "why")
    state, actions = phase_transitions.conclude(ready(phase=phases.Stopped()), verdict)
    assert state.phase == phases.Closing(verdict)
    assert node_messages.EndSpawner("j") in actions
    assert not any(isinstance(action, node_messages.FinishJob) for action in actions)
    state, actions = phase_transitions.conclude(ready(phase=phases.Stopped(), has_spawner=False), verdict)
    assert state.phase == phases.Ended(verdict)
    assert actions[-1] == node_messages.FinishJob("j", verdict)
