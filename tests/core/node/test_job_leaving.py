"""A node that was asked to leave: what does it report, and what does it do if nobody answers?"""

from __future__ import annotations

import signal as signals

import msgspec
import pytest

from supervisor.core import job_phases as phases
from supervisor.core import orders, worker_messages
from supervisor.core.cluster.cluster_messages import LeaveAsked, NodeStands, NodeStopped, StopAsked, VerdictTaken
from supervisor.core.facts import Assignment, JobRules, JobState, RestartRules, Verdict
from supervisor.core.node import hang_response, job, job_leaving, node_messages, process_pauses, worker_group
from supervisor.core.node.job_leaving import ANSWER_S, ANSWER_WITH_RANKS_S
from supervisor.core.node.job_machines import JobMachines

TERM = int(signals.SIGTERM)
RULES = JobRules("j", 2, restart=RestartRules(min_nodes=2))
ALONE = "node b has left the job (got SIGTERM); no leader has answered it; the job goes on without it"


def in_phase(phase: phases.Phase, rules: JobRules = RULES) -> phases.State:
    return phases.State("b", rules, phase, 3, "why", has_spawner=True, spawners=1, assignment=Assignment(3, 1, 2, 4, 2))


def signalled(*, leaves: bool = False, signal: int = TERM) -> node_messages.StopRequested:
    return node_messages.StopRequested("j", "got SIGTERM", signal, of_node=True, leaves=leaves)


def told(actions: job.Actions, kind: type) -> list[object]:
    return [
        each.report for each in actions if isinstance(each, node_messages.TellCoordinator) and type(each.report) is kind
    ]


def asked_in(phase: phases.Phase, *, leaves: bool = False) -> phases.State:
    state, actions = job.step(in_phase(phase), signalled(leaves=leaves), now_s=0.0)
    assert told(actions, LeaveAsked) == [LeaveAsked("b", "got SIGTERM", TERM, with_ranks=leaves, or_stop=True)]
    assert not told(actions, StopAsked)
    return state


@pytest.mark.parametrize("phase", [phases.Pending(), phases.Rendezvous(), phases.Down()])
def test_a_node_where_nothing_runs_asks_to_leave(phase: phases.Phase) -> None:
    assert job.next_deadline_s(asked_in(phase)) == ANSWER_S


def test_a_node_of_a_job_alone_stops_it() -> None:
    _, actions = job.step(in_phase(phases.Rendezvous(), JobRules("j", 2)), signalled(), now_s=0.0)
    assert told(actions, StopAsked)


def test_a_node_with_ranks_stops_the_job_and_its_ranks_at_once() -> None:
    state, actions = job.step(in_phase(phases.Running()), signalled(), now_s=0.0)
    assert told(actions, StopAsked) == [StopAsked("got SIGTERM on node b", TERM)]
    assert state.phase == phases.Stopping(phases.Leave())


def test_with_on_sigterm_leave_its_ranks_go_on_until_the_leader_answers() -> None:
    state = asked_in(phases.Running(), leaves=True)
    assert state.phase == phases.Running()
    assert job.next_deadline_s(state) == ANSWER_WITH_RANKS_S
    state, _ = job.step(state, orders.JoinAgain(4, "node b leaves"), now_s=1.0)
    assert job.next_deadline_s(state) is None, "its ranks have their grace period"
    state, _ = job.step(state, worker_messages.WorkersGone(None, False, ()), now_s=9.0)
    patience_s = ANSWER_S + RULES.workers_stop_timeout_s  # if it leads, the ranks of others may take that long
    assert (type(state.phase), job.next_deadline_s(state)) == (phases.Rendezvous, 9.0 + patience_s)
    state, _ = job.step(state, orders.Resign("it leaves"), now_s=12.0)
    assert job.next_deadline_s(state) == 12.0 + ANSWER_S


def test_a_drained_node_with_ranks_waits_for_a_leader_as_long_as_it_takes() -> None:
    state, _ = job.step(in_phase(phases.Running()), node_messages.LeaveRequested("j", "by kim"), now_s=0.0)
    assert job.next_deadline_s(state) is None
    state, actions = job.step(state, orders.Introduce(), now_s=60.0)
    (stands,) = told(actions, NodeStands)
    assert isinstance(stands, NodeStands)
    assert stands.leave == LeaveAsked("b", "by kim", with_ranks=True)
    state, _ = job.step(in_phase(phases.Rendezvous()), node_messages.LeaveRequested("j", "by kim"), now_s=0.0)
    assert job.next_deadline_s(state) == ANSWER_S, "nothing runs there"


def test_a_drained_node_whose_ranks_ended_with_the_silence_of_the_leader_waits_for_it() -> None:
    state, _ = job.step(in_phase(phases.Running()), node_messages.LeaveRequested("j", "by kim"), now_s=0.0)
    state, actions = job.step(state, orders.StandBack("the leader is silent"), now_s=4.0)
    assert worker_messages.KillWorkers() in actions
    state, _ = job.step(state, worker_messages.WorkersGone(None, False, ()), now_s=5.0)
    assert (type(state.phase), job.next_deadline_s(state)) == (phases.Rendezvous, None)
    assert state.leaving is not None
    cycle = Assignment(4, 1, 2, 4, 2)
    state, _ = job.step(state, orders.StartCycle(cycle, "the leader is back"), now_s=20.0)
    assert job.next_deadline_s(state) is None, "ranks that run are not ended unasked"


def test_a_spare_that_is_drained_and_then_gets_ranks_keeps_them() -> None:
    state, _ = job.step(in_phase(phases.Rendezvous()), node_messages.LeaveRequested("j", "by kim"), now_s=0.0)
    state, _ = job.step(state, orders.StartCycle(Assignment(4, 1, 2, 4, 2), "one was lost"), now_s=1.0)
    assert job.next_deadline_s(state) is None
    signalled_spare = asked_in(phases.Rendezvous())
    state, _ = job.step(signalled_spare, orders.StartCycle(Assignment(4, 1, 2, 4, 2), "one was lost"), now_s=1.0)
    assert job.next_deadline_s(state) == ANSWER_S, "a signal announces the end of the node"


def test_a_node_that_nobody_answers_leaves_by_itself_and_reports_no_verdict() -> None:
    state, actions = job.step(asked_in(phases.Rendezvous()), node_messages.DeadlineReached(), now_s=ANSWER_S)
    assert state.phase == phases.Closing(Verdict(JobState.STOPPED, 0, ALONE))
    assert not told(actions, VerdictTaken), "a leader that hears it later would take it for the job's end"
    _, actions = job.step(state, orders.Introduce(), now_s=5.0)
    assert not actions, "it is no longer one of the job's nodes"


def test_a_deadline_that_comes_early_changes_nothing() -> None:
    state = asked_in(phases.Rendezvous())
    assert job.step(state, node_messages.DeadlineReached(), now_s=ANSWER_S - 1) == (state, ())


def test_a_node_with_ranks_that_nobody_answers_ends_them_and_then_leaves() -> None:
    state = asked_in(phases.Running(), leaves=True)
    state, actions = job.step(state, node_messages.DeadlineReached(), now_s=ANSWER_WITH_RANKS_S)
    assert worker_messages.StopWorkers(TERM, RULES.term_timeout_s, by_signal=True) in actions
    state, actions = job.step(state, worker_messages.WorkersGone(None, False, ()), now_s=20.0)
    assert state.phase == phases.Closing(Verdict(JobState.STOPPED, 0, ALONE))
    assert not told(actions, NodeStopped)


def test_a_node_that_was_suspended_waits_for_its_leader_as_long_as_without_the_suspension() -> None:
    asked = asked_in(phases.Running(), leaves=True)
    machines = JobMachines(asked, worker_group.initial_state(), hang_response.initial_state())
    state = process_pauses.noted(machines, node_messages.ProcessPaused(4.0), now_s=5000.0).job
    due_s = 5000.0 + ANSWER_WITH_RANKS_S - 4.0
    assert job.step(state, node_messages.DeadlineReached(), now_s=due_s - 0.1) == (state, ())
    state, actions = job.step(state, node_messages.DeadlineReached(), now_s=due_s)
    assert [each for each in actions if isinstance(each, worker_messages.StopWorkers)]


def test_a_stop_that_no_leader_has_heard_gets_no_more_time_by_a_suspension() -> None:
    """The other nodes may have gone on for hours, and people have seen that."""
    machines = JobMachines(asked_on_a_spare(), worker_group.initial_state(), hang_response.initial_state())
    state = process_pauses.noted(machines, node_messages.ProcessPaused(4.0), now_s=5000.0).job
    assert introduced(state, 5000.0)[1].stop_reason == ""


def test_a_second_signal_does_not_wait_for_the_leader() -> None:
    state = asked_in(phases.Running(), leaves=True)
    assert job.step(state, signalled(leaves=True), now_s=1.9) == (state, ()), "one that is passed on"
    state, actions = job.step(state, signalled(leaves=True), now_s=2.0)
    assert worker_messages.KillWorkers() in actions
    assert state.phase == phases.Stopping(phases.Leave())


@pytest.mark.parametrize("number", [TERM, int(signals.SIGINT), 0])
def test_the_end_of_a_node_that_is_drained_is_its_own_and_waits_for_the_leader_as_any_leave(number: int) -> None:
    state, _ = job.step(in_phase(phases.Running()), node_messages.LeaveRequested("j", "by kim"), now_s=0.0)
    state, actions = job.step(state, signalled(signal=number), now_s=5.0)
    asked = LeaveAsked("b", "got SIGTERM", number, with_ranks=True, or_stop=True)
    assert (told(actions, LeaveAsked), told(actions, StopAsked)) == ([asked], [])
    assert (state.phase, job.next_deadline_s(state)) == (phases.Running(), 5.0 + ANSWER_WITH_RANKS_S)
    assert job.step(state, signalled(signal=number), now_s=5.05) == (state, ()), "timeout(1) sends two at once"
    if number:
        state, actions = job.step(state, signalled(signal=number), now_s=7.0)
        assert worker_messages.KillWorkers() in actions
        assert not told(actions, StopAsked)
    state, _ = job.step(state, node_messages.DeadlineReached(), now_s=5.0 + ANSWER_WITH_RANKS_S)
    state, _ = job.step(state, worker_messages.WorkersGone(None, False, ()), now_s=20.0)
    assert state.phase == phases.Closing(Verdict(JobState.STOPPED, 0, ALONE))


def test_another_signal_while_the_leader_lets_the_node_go_kills_its_ranks_and_the_job_goes_on() -> None:
    state = asked_in(phases.Running(), leaves=True)
    state, _ = job.step(state, orders.JoinAgain(4, "node b leaves"), now_s=1.0)
    state, actions = job.step(state, signalled(signal=int(signals.SIGINT)), now_s=2.0)
    assert worker_messages.KillWorkers() in actions
    assert not told(actions, StopAsked)


def test_a_second_signal_to_a_node_that_could_not_leave_kills_everywhere_and_its_echo_nobody() -> None:
    state = asked_in(phases.Running(), leaves=True)
    state, _ = job.step(state, orders.WindDown("got SIGTERM", TERM), now_s=0.1)
    assert state.phase == phases.Stopping(phases.Leave())
    state, actions = job.step(state, signalled(leaves=True), now_s=1.9)
    assert told(actions, StopAsked) == [StopAsked("got SIGTERM on node b", TERM)]
    assert worker_messages.KillWorkers() not in actions
    _, actions = job.step(state, signalled(leaves=True), now_s=3.0)
    assert told(actions, StopAsked) == [StopAsked("got SIGTERM on node b", TERM, at_once=True)]
    assert worker_messages.KillWorkers() in actions


def test_the_first_signal_of_a_node_whose_ranks_another_one_has_ended_kills_nobody() -> None:
    state, _ = job.step(in_phase(phases.Running()), orders.WindDown("got SIGTERM on node a", TERM), now_s=0.0)
    event = msgspec.structs.replace(signalled(leaves=True), running=(2, 3))
    state, actions = job.step(state, event, now_s=3.0)
    assert told(actions, StopAsked) == [StopAsked("got SIGTERM on node b", TERM)]
    assert worker_messages.KillWorkers() not in actions
    (said,) = [each.event.reason for each in actions if isinstance(each, node_messages.Publish)]
    assert said.startswith("got SIGTERM on node b: ranks 2 to 3 have 1800 s to end; another one after 2 s kills")


@pytest.mark.parametrize("number", [TERM, int(signals.SIGKILL)])
def test_a_signal_by_command_counts_as_one_to_its_node_and_sigkill_kills_everywhere(number: int) -> None:
    """`holdfast stop --signal`, typed on another node than the one that got SIGTERM."""
    kills = number == signals.SIGKILL
    state, _ = job.step(in_phase(phases.Running()), orders.WindDown("got SIGTERM on node a", TERM), now_s=0.0)
    state, actions = job.step(state, node_messages.StopRequested("j", "by kim", number), now_s=0.05)
    assert told(actions, StopAsked) == [StopAsked("by kim on node b", number, at_once=kills)]
    assert (worker_messages.KillWorkers() in actions) is kills
    _, actions = job.step(state, signalled(), now_s=10.0)
    assert told(actions, StopAsked) == [StopAsked("got SIGTERM on node b", TERM, at_once=True)], "it is the second one"


@pytest.mark.parametrize("number", [TERM, int(signals.SIGKILL)])
def test_a_signal_by_command_to_a_node_that_waits_to_leave_kills_its_ranks_alone_and_sigkill_all(number: int) -> None:
    """`holdfast stop --signal` on a node that got SIGTERM: the others have got none."""
    event = node_messages.StopRequested("j", "by kim", number)
    _, actions = job.step(asked_in(phases.Running(), leaves=True), event, now_s=3.0)
    assert told(actions, StopAsked) == [StopAsked("by kim on node b", number, at_once=number == signals.SIGKILL)]
    assert worker_messages.KillWorkers() in actions


def test_the_end_of_the_supervisor_is_no_first_signal_to_a_node_that_waits_to_leave() -> None:
    """A node that reboots ends its supervisor and its launchers, one after the other."""
    state, _ = job.step(in_phase(phases.Running()), signalled(leaves=True, signal=0), now_s=0.0)
    state, actions = job.step(state, signalled(leaves=True), now_s=1.0)
    assert (state.phase, actions) == (phases.Running(), ())
    _, actions = job.step(state, signalled(leaves=True), now_s=3.0)
    assert worker_messages.KillWorkers() in actions


def has_ended_its_part(phase: phases.Phase) -> phases.State:
    """Returns a node that got SIGTERM at 0 s and could not leave, so that the whole job ends, and its part has."""
    state = asked_in(phase, leaves=isinstance(phase, phases.Running))
    state, _ = job.step(state, orders.WindDown("got SIGTERM", TERM), now_s=0.1)
    if isinstance(state.phase, phases.Stopping):
        state, _ = job.step(state, worker_messages.WorkersGone(None, False, ()), now_s=1.0)
    assert state.phase == phases.Stopped()
    return state


@pytest.mark.parametrize("phase", [phases.Running(), phases.Pending(), phases.Rendezvous(), phases.Down()])
def test_a_second_signal_to_a_node_whose_own_part_has_ended_kills_the_ranks_of_the_others(phase: phases.Phase) -> None:
    state = has_ended_its_part(phase)
    _, actions = job.step(state, signalled(leaves=True), now_s=1.9)
    assert told(actions, StopAsked) == [StopAsked("got SIGTERM on node b", TERM)], "an echo"
    _, actions = job.step(state, signalled(leaves=True), now_s=60.0)
    assert told(actions, StopAsked) == [StopAsked("got SIGTERM on node b", TERM, at_once=True)]


def test_a_node_that_stays_says_why_and_waits_for_nothing() -> None:
    state, actions = job.step(in_phase(phases.Running()), node_messages.LeaveRequested("j", "by kim"), now_s=0.0)
    assert told(actions, LeaveAsked) == [LeaveAsked("b", "by kim", with_ranks=True)]
    state, (said,) = job.step(state, orders.Stay("cannot take node b out"), now_s=0.5)
    assert isinstance(said, node_messages.Publish)
    assert (said.event.kind, said.event.reason) == ("leave_refused", "cannot take node b out")
    assert (state.leaving, job.next_deadline_s(state)) == (None, None)


def test_the_verdict_of_a_job_that_is_stopped_meanwhile_is_waited_for() -> None:
    state, actions = job.step(asked_in(phases.Rendezvous()), orders.WindDown("enough"), now_s=1.0)
    assert told(actions, NodeStopped)
    assert job.next_deadline_s(state) is None
    state, _ = job.step(state, orders.Conclude(Verdict(JobState.STOPPED, 143, "enough")), now_s=2.0)
    assert state.phase == phases.Closing(Verdict(JobState.STOPPED, 143, "enough"))


def test_a_leader_that_gives_up_the_lead_to_leave_waits_for_the_next_one() -> None:
    state = asked_in(phases.Rendezvous())
    state, _ = job.step(state, orders.Resign("it leaves"), now_s=2.0)
    assert job.next_deadline_s(state) == 2.0 + ANSWER_S
    _, actions = job.step(state, orders.Introduce(), now_s=2.5)
    (stands,) = told(actions, NodeStands)
    assert isinstance(stands, NodeStands)
    assert stands.leave == LeaveAsked("b", "got SIGTERM", TERM, or_stop=True)


@pytest.mark.parametrize(
    "phase", [phases.Stopped(), phases.Stopping(phases.Leave()), phases.Closing(Verdict(JobState.FAILED, 1, "x"))]
)
def test_a_deadline_that_has_passed_as_the_job_ends_is_over(phase: phases.Phase) -> None:
    state = msgspec.structs.replace(asked_in(phases.Rendezvous()), phase=phase)
    state, actions = job.step(state, node_messages.DeadlineReached(), now_s=ANSWER_S)
    assert (job.next_deadline_s(state), actions) == (None, ())


@pytest.mark.parametrize("phase", [phases.Stopped(), phases.Closing(Verdict(JobState.FAILED, 1, "x"))])
def test_a_job_that_ends_here_is_not_left(phase: phases.Phase) -> None:
    state = msgspec.structs.replace(in_phase(phase))
    assert job_leaving.next_deadline_s(state) is None
    _, actions = job.step(state, node_messages.LeaveRequested("j", "by kim"), now_s=0.0)
    assert not actions


@pytest.mark.parametrize("asked", [[(TERM, 0.0), (TERM, 5.0)], [(int(signals.SIGKILL), 0.0)]])
def test_a_kill_that_no_leader_has_heard_is_one_for_the_next_leader(asked: list[tuple[int, float]]) -> None:
    state = in_phase(phases.Running())
    for signal, now_s in asked:
        state, _ = job.step(state, signalled(signal=signal), now_s=now_s)
    state, stands, _ = introduced(state, 60.0)
    assert (stands.stop_reason, stands.stop_at_once) == ("got SIGTERM on node b", True)
    state, _ = job.step(in_phase(phases.Running()), signalled(), now_s=0.0)
    assert not introduced(state, 60.0)[1].stop_at_once


# --- a node that has never met a leader


def unled(phase: phases.Phase = phases.Rendezvous()) -> phases.State:  # noqa: B008 (frozen)
    return phases.State("b", RULES, phase, has_spawner=True, spawners=1)


@pytest.mark.parametrize("phase", [phases.Pending(), phases.Rendezvous(), phases.Down()])
@pytest.mark.parametrize("wish", [signalled(), signalled(leaves=True)])
def test_a_signal_before_any_leader_was_met_stops_the_job(
    phase: phases.Phase, wish: node_messages.StopRequested
) -> None:
    state, _ = job.step(unled(phase), wish, now_s=0.0)
    assert job.next_deadline_s(state) == ANSWER_S
    state, _ = job.step(state, node_messages.DeadlineReached(), now_s=ANSWER_S)
    stopped = Verdict(JobState.STOPPED, 128 + TERM, "got SIGTERM; no leader of the job has answered")
    assert state.phase == phases.Closing(stopped), "nobody knows of a job that goes on"


@pytest.mark.parametrize("phase", [phases.Pending(), phases.Rendezvous(), phases.Down()])
def test_a_command_before_any_leader_was_met_stops_the_job_for_good(phase: phases.Phase) -> None:
    state, actions = job.step(unled(phase), node_messages.StopRequested("j", "by kim", 0), now_s=0.0)
    assert told(actions, StopAsked) == [StopAsked("by kim on node b", 0, is_final=True)]
    state, _ = job.step(state, node_messages.StopRequested("j", "by ann", 0), now_s=2.0)
    assert job.next_deadline_s(state) == ANSWER_S, "asking again takes no longer"
    state, _ = job.step(state, node_messages.DeadlineReached(), now_s=ANSWER_S)
    reason = "by kim on node b; no leader of the job has answered"
    assert state.phase == phases.Closing(Verdict(JobState.STOPPED, RULES.restart.no_restart_exit_code, reason))


def test_a_leader_that_answers_in_time_decides() -> None:
    state, _ = job.step(unled(), node_messages.StopRequested("j", "by kim", 0), now_s=0.0)
    state = msgspec.structs.replace(state, has_met_leader=True)
    assert job.next_deadline_s(state) == job_leaving.STOP_KEPT_S
    state, actions = job.step(state, orders.Introduce(), now_s=1.0)
    (stands,) = told(actions, NodeStands)
    assert isinstance(stands, NodeStands)
    assert stands.stop_reason == "by kim on node b", "a leader that has not heard the stop learns of it"
    state, _ = job.step(unled(), node_messages.StopRequested("j", "by kim", 0), now_s=0.0)
    state, _ = job.step(state, orders.WindDown("by kim"), now_s=1.0)
    assert (state.phase, job.next_deadline_s(state)) == (phases.Stopped(), None)


def test_a_spare_whose_leader_is_away_leaves_a_job_that_goes_on() -> None:
    state = msgspec.structs.replace(unled(), has_met_leader=True)
    state, _ = job.step(state, signalled(), now_s=0.0)
    state, _ = job.step(state, node_messages.DeadlineReached(), now_s=ANSWER_S)
    assert state.phase == phases.Closing(Verdict(JobState.STOPPED, 0, ALONE))


def asked_on_a_spare(grace_s: float | None = None) -> phases.State:
    """Returns a node without ranks whose leader is away, and on which somebody has typed `holdfast stop` at 0 s."""
    spare = msgspec.structs.replace(unled(), has_met_leader=True)
    state, _ = job.step(spare, node_messages.StopRequested("j", "by kim", 0, grace_s=grace_s), now_s=0.0)
    return state


def introduced(state: phases.State, now_s: float) -> tuple[phases.State, NodeStands, list[str]]:
    state, actions = job.step(state, orders.Introduce(), now_s=now_s)
    (stands,) = told(actions, NodeStands)
    assert isinstance(stands, NodeStands)
    return state, stands, [each.event.kind for each in actions if isinstance(each, node_messages.Publish)]


def test_a_stop_on_a_spare_waits_for_a_leader_with_the_time_that_ranks_get() -> None:
    _, stands, said = introduced(asked_on_a_spare(grace_s=600.0), job_leaving.STOP_KEPT_S - 0.1)
    assert (stands.stop_reason, stands.stop_is_final, stands.stop_grace_s) == ("by kim on node b", True, 600.0)
    assert said == []


def test_a_stop_that_no_leader_has_heard_for_long_stops_nothing_and_that_is_said_once() -> None:
    """A node that comes back after hours must not end a job whose people have seen it go on."""
    state, stands, said = introduced(asked_on_a_spare(), job_leaving.STOP_KEPT_S)
    assert (stands.stop_reason, stands.stop_is_final) == ("", False)
    assert said == ["stop_dropped"]
    assert introduced(state, job_leaving.STOP_KEPT_S + 1.0)[2] == []
    again, _ = job.step(
        asked_on_a_spare(), node_messages.StopRequested("j", "by ann", 0), now_s=job_leaving.STOP_KEPT_S
    )
    assert introduced(again, job_leaving.STOP_KEPT_S + 1.0)[1].stop_reason == "by ann on node b", "it is a new stop"


@pytest.mark.parametrize("phase", [phases.Pending(), phases.Rendezvous(), phases.Down()])
def test_a_stop_that_no_leader_hears_is_dropped_in_time_and_that_is_said_although_none_comes(
    phase: phases.Phase,
) -> None:
    asked_at_s = 0.1
    state, _ = job.step(in_phase(phase), node_messages.StopRequested("j", "by kim", 0), now_s=asked_at_s)
    due_s = asked_at_s + job_leaving.STOP_KEPT_S
    assert job.next_deadline_s(state) == due_s
    state, actions = job.step(state, node_messages.DeadlineReached(), now_s=due_s)
    assert [each.event.kind for each in actions if isinstance(each, node_messages.Publish)] == ["stop_dropped"]
    assert (state.phase, job.next_deadline_s(state)) == (phase, None)


def test_a_stop_of_a_node_whose_ranks_have_stopped_is_no_old_one() -> None:
    state, _ = job.step(in_phase(phases.Running()), node_messages.StopRequested("j", "by kim", 0), now_s=0.0)
    state = msgspec.structs.replace(state, phase=phases.Stopped())
    assert introduced(state, 10 * job_leaving.STOP_KEPT_S)[1].stop_reason == "by kim on node b"


@pytest.mark.parametrize("signal", [0, TERM])
def test_a_stop_is_kept_for_a_moment_after_a_cycle_has_begun_and_then_dropped_with_a_sentence(signal: int) -> None:
    """The order crossed it. Later, a leader would stop a job that goes on, and a first signal would kill the ranks."""
    spare = msgspec.structs.replace(unled(), has_met_leader=True)
    state, _ = job.step(spare, node_messages.StopRequested("j", "by kim", signal, grace_s=600.0), now_s=0.0)
    state, _ = job.step(state, orders.StartCycle(Assignment(4, 1, 2, 4, 2), "go"), now_s=1.0)
    assert isinstance(state.phase, phases.AwaitingStore)
    _, stands, _ = introduced(state, 2.0)
    assert (stands.stop_reason, stands.stop_signal, stands.stop_grace_s) == ("by kim on node b", signal, 600.0)
    assert job.next_deadline_s(state) == job_leaving.STOP_KEPT_IN_CYCLE_S
    state, actions = job.step(state, node_messages.DeadlineReached(), now_s=job_leaving.STOP_KEPT_IN_CYCLE_S)
    assert [each.event.kind for each in actions if isinstance(each, node_messages.Publish)] == ["stop_dropped"]
    _, stands, _ = introduced(state, 20.0)
    assert (stands.stop_reason, stands.stop_is_final, stands.stop_grace_s) == ("", False, None)
    state, actions = job.step(state, node_messages.StopRequested("j", "got SIGTERM", TERM), now_s=3600.0)
    assert [each for each in actions if isinstance(each, worker_messages.KillWorkers)] == []
    stop = worker_messages.StopWorkers(TERM, RULES.term_timeout_s, by_signal=True)
    assert [each for each in actions if isinstance(each, worker_messages.StopWorkers)] == [stop]
