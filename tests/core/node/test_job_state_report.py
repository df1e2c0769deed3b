"""What is a job's state on a node, phase by phase, and what does the node do when its leader changes?"""

from __future__ import annotations

import pytest

from supervisor.core import job_phases as phases
from supervisor.core.cluster.cluster_messages import MemberState, NodeFailed, NodeStands
from supervisor.core.facts import Assignment, JobRules, JobState, Verdict
from supervisor.core.job_phases import State
from supervisor.core.node import job, job_state_report
from supervisor.core.node.node_messages import SpawnerLost, SpawnerReady, TellCoordinator
from supervisor.core.orders import Conclude, Introduce, JoinAgain, StandBack, WindDown
from supervisor.core.worker_messages import KillWorkers, StopWorkers, WorkersSucceeded

RULES = JobRules("job", 2)
PART = Assignment(4, 0, 2, 4, 0)
NEXT = Assignment(5, 1, 2, 4, 2)
VERDICT = Verdict(JobState.FAILED, 1, "a reason")

PHASES: list[tuple[phases.Phase, MemberState]] = [
    (phases.Pending(), MemberState.OPENED),
    (phases.Rendezvous(), MemberState.JOINED),
    (phases.AwaitingStore(PART), MemberState.RUNNING),
    (phases.Starting(), MemberState.RUNNING),
    (phases.Running(), MemberState.RUNNING),
    (phases.Finished((3,)), MemberState.SUCCEEDED),
    (phases.Stopping(phases.Rejoin(announced=True)), MemberState.FAILED),
    (phases.Stopping(phases.StartNext(NEXT, "")), MemberState.RUNNING),
    (phases.Stopping(phases.Leave()), MemberState.FAILED),
    (phases.Down(), MemberState.DOWN),
    (phases.Stopped(all_succeeded=True), MemberState.STOPPED),
    (phases.Closing(VERDICT), MemberState.INFORMED),
    (phases.Ended(VERDICT), MemberState.INFORMED),
]


def state(phase: phases.Phase, **more: object) -> State:
    known = {"cycle": 4, "assignment": PART, "restarts_used": 1, "reason": "why", "has_spawner": True} | more
    return State("a", RULES, phase, **known)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("phase", "shown"), PHASES, ids=[type(phase).__name__ for phase, _ in PHASES])
def test_each_phase_in_the_leaders_words(phase: phases.Phase, shown: MemberState):
    said = job_state_report.state_report(state(phase))
    is_next = isinstance(phase, phases.Stopping) and isinstance(phase.then, phases.StartNext)
    part = NEXT if is_next else PART
    assert said == NodeStands(
        "a", RULES, shown, part.cycle, part, 1, "why",
        all_succeeded=isinstance(phase, phases.Stopped), lost=phase.lost if isinstance(phase, phases.Finished) else (),
        verdict=VERDICT if isinstance(phase, phases.Closing | phases.Ended) else None,
    )  # fmt: skip


def test_ranks_that_a_call_had_lost_are_told_to_the_next_leader_of_a_node_that_has_succeeded():
    after, _ = job.step(state(phases.Running()), WorkersSucceeded((1,)), now_s=1.0)
    _, told = job.step(after, Introduce(), now_s=2.0)
    assert [each.report.lost for each in told if isinstance(each, TellCoordinator)] == [(1,)]  # pyright: ignore


@pytest.mark.parametrize("phase", [phases.Rendezvous(), phases.Running(), phases.Stopping(phases.Leave())])
def test_a_node_that_was_told_how_the_job_ends_tells_it_to_the_next_leader(phase: phases.Phase):
    """The backend may have lost the ledger in which it was."""
    after, _ = job.step(state(phase), WindDown("a reason", verdict=VERDICT), now_s=1.0)
    assert job_state_report.state_report(after).verdict == VERDICT
    again, _ = job.step(after, WindDown("Ctrl-C", 2, at_once=True), now_s=2.0)
    assert job_state_report.state_report(again).verdict == VERDICT, "a stop during a verdict changes nothing of it"

    ended, _ = job.step(state(phase), Conclude(VERDICT), now_s=1.0)
    assert job_state_report.state_report(ended).verdict == VERDICT


def test_the_verdict_of_a_stop_under_way_leaves_the_ranks_their_grace():
    """The leader knows it 0.5 s after the order to stop, if a scheduler might have asked for a stop until then."""
    stopping, actions = job.step(state(phases.Running()), WindDown("a reason"), now_s=1.0)
    assert any(isinstance(each, StopWorkers) for each in actions)
    told, actions = job.step(stopping, WindDown("a reason", verdict=VERDICT), now_s=1.5)
    assert (told.phase, job_state_report.state_report(told).verdict, actions) == (stopping.phase, VERDICT, ())
    alone = state(phases.Stopping(phases.Leave()), reason="it leaves the job")
    _, actions = job.step(alone, WindDown("a reason", verdict=VERDICT), now_s=1.5)
    assert isinstance(actions[0], StopWorkers), "its first order from a leader"


def test_a_kill_with_a_verdict_that_the_node_knows_kills():
    stopping, _ = job.step(state(phases.Running()), WindDown("a reason", verdict=VERDICT), now_s=1.0)
    _, actions = job.step(stopping, WindDown("a reason", at_once=True, verdict=VERDICT), now_s=2.0)
    assert actions == (KillWorkers(),)


def test_the_store_is_told_where_others_need_it():
    store = phases.Store(4, "10.0.0.1", 20000)
    served = job_state_report.state_report(state(phases.Running(), store=store))
    assert (served.store_host, served.store_port) == ("10.0.0.1", 20000)
    for more in (
        {"store": phases.Store(4)},
        {"store": phases.Store(5, "10.0.0.1", 20000)},
        {"store": store, "assignment": Assignment(4, 1, 2, 4, 2)},
        {"store": store, "assignment": Assignment(4, 0, 1, 2, 0)},
    ):
        assert job_state_report.state_report(state(phases.Running(), **more)).store_host == ""


def test_a_node_is_asked_to_introduce_itself():
    for phase, _ in PHASES[:-1]:
        _, actions = job.step(state(phase), Introduce(), now_s=0.0)
        assert actions == (TellCoordinator("job", job_state_report.state_report(state(phase))),)


def refused() -> State:
    new = State("a", RULES, phases.Pending(), has_spawner=True, spawners=1)
    return job.step(new, SpawnerReady("job", 1, refusal="cannot run x.py", refusal_code=2), now_s=0.0)[0]


def test_each_new_leader_hears_that_the_node_cannot_run_its_command():
    """The first report may come while no leader is known, which nobody hears."""
    after, actions = job.step(refused(), Introduce(), now_s=9.0)
    failed = NodeFailed("a", -1, "cannot run x.py", restart_allowed=False, exit_code=2, first_failure="cannot run x.py")
    assert actions == (TellCoordinator("job", job_state_report.state_report(after)), TellCoordinator("job", failed))
    assert job_state_report.state_report(after).state is MemberState.OPENED


def test_a_node_that_was_refused_alone_is_none_of_the_jobs_nodes_any_more():
    """A leader that does not know it would take its state for the job's end."""
    after, _ = job.step(refused(), Conclude(VERDICT), now_s=1.0)
    assert isinstance(after.phase, phases.Closing)
    assert job.step(after, Introduce(), now_s=1.0)[1] == ()


def test_a_refusal_is_over_with_the_order_to_stop_and_with_the_next_spawner():
    stopped, _ = job.step(refused(), WindDown("the job ends"), now_s=1.0)
    closing, _ = job.step(stopped, Conclude(VERDICT), now_s=1.0)
    down, _ = job.step(refused(), SpawnerLost("job", 1, "it was killed"), now_s=1.0)
    restarted, _ = job.step(down, JoinAgain(1, "again"), now_s=2.0)
    for after in (stopped, closing, down, restarted):
        _, actions = job.step(after, Introduce(), now_s=2.0)
        assert actions == (TellCoordinator("job", job_state_report.state_report(after)),)


@pytest.mark.parametrize(("phase", "shown"), PHASES, ids=[type(phase).__name__ for phase, _ in PHASES])
def test_a_node_that_stands_back_kills_what_runs_and_waits_for_a_leader(phase: phases.Phase, shown: MemberState):
    after, actions = job.step(state(phase), StandBack("nobody is heard"), now_s=0.0)
    runs = isinstance(phase, phases.AwaitingStore | phases.Starting | phases.Running | phases.Finished)
    if runs or isinstance(phase, phases.Stopping):
        assert KillWorkers() in actions
        assert isinstance(after.phase, phases.Stopping)
        leaves = isinstance(phase, phases.Stopping) and isinstance(phase.then, phases.Leave)
        assert isinstance(after.phase.then, phases.Leave if leaves else phases.Rejoin)
    else:
        assert (after, actions) == (state(phase), ())
    # A leader that did not answer for a while may still lead: it would wait for these workers indefinitely.
    assert any(isinstance(each, TellCoordinator) and isinstance(each.report, NodeFailed) for each in actions) == runs
    del shown
