"""Every node stops, then every node knows the same verdict; no wait is unbounded."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec
import pytest

from supervisor.core.announcements import CycleEnded
from supervisor.core.cluster import coordinator, job_termination, leader_takeover
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    Event,
    JobForbidden,
    JobOpened,
    LeaveAsked,
    MemberState,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeStands,
    NodeStopped,
    NodeSucceeded,
    Publish,
    RestartAsked,
    Send,
    StacksTaken,
    StopAsked,
    StoreServed,
    VerdictTaken,
)
from supervisor.core.facts import (
    Cause,
    Evidence,
    JobRules,
    JobState,
    RendezvousRules,
    RestartPolicyName,
    RestartRules,
    Verdict,
)
from supervisor.core.orders import Conclude, WindDown
from supervisor.core.stop_verdict import STOP_FOLLOWS_S
from tests.core.new_leader import IN_CYCLE_4, new_leader, of_nodes, orders_to, stands
from tests.core.playbook import Playbook

Play = Playbook[coordinator.State]
NODES = ("a", "b")
SIGNALLED = StopAsked("the launcher got SIGTERM", 15)
AGAIN = msgspec.structs.replace(SIGNALLED, at_once=True)
BY_KIM = StopAsked("stopped by kim", 0, is_final=True)
SUPERVISOR_ENDS = StopAsked("the supervisor ends", 0)
FAILED = Verdict(JobState.FAILED, 1, "rank 0 failed")
TERMINATED = NodeFailed("a", 0, "rank 0 was killed by SIGTERM", may_be_stop=True)


def running(*, spare: bool = False, max_restarts: int = 0) -> Play:
    rules = JobRules("job", 2, restart=RestartRules(max_restarts=max_restarts, min_nodes=2))
    play: Play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    for node in (*NODES, *(("spare",) if spare else ())):
        play >> JobOpened(node, rules)
    for node in (*NODES, *(("spare",) if spare else ())):
        play >> NodeJoined(node, -1)
    return play


def stopped(play: Play, *, all_succeeded: bool = False, nodes: tuple[str, ...] = NODES) -> Play:
    for node in nodes:
        play >> NodeStopped(node, all_succeeded=all_succeeded)
    return play


def verdict(play: Play) -> Verdict:
    (found,) = {each.order.verdict for each in play.of(Send) if isinstance(each.order, Conclude)}
    return found


def test_a_stop_asked_of_one_node_is_ordered_of_all_and_is_nobodys_fault() -> None:
    play = running(max_restarts=3) >> SIGNALLED
    wind_down = WindDown("the launcher got SIGTERM", 15)
    assert play.last == (CycleEnded(0, NODES), *(Send(node, wind_down) for node in NODES))
    play >> NodeFailed("b", 0, "rank 3 was killed by SIGTERM") << ()
    assert verdict(stopped(play)) == Verdict(JobState.STOPPED, 128 + 15, "the launcher got SIGTERM")
    assert coordinator.restarts_used(play.state) == 0


def test_a_signal_that_all_ranks_of_all_nodes_answer_with_0_is_a_success() -> None:
    play = running(spare=True) >> SIGNALLED
    play >> NodeStopped("spare", all_succeeded=False) << ()
    assert verdict(stopped(play, all_succeeded=True)).exit_code == 0
    play = running() >> SIGNALLED
    play >> NodeStopped("a", all_succeeded=True)
    play >> NodeStopped("b", all_succeeded=False)
    assert verdict(play).exit_code == 128 + 15


@pytest.mark.parametrize("signal", [2, 15])
def test_the_first_signal_of_each_node_ends_nothing_at_once_however_much_later_it_comes(signal: int) -> None:
    first = StopAsked("the launcher got it", signal)
    play = running() >> first
    play.at(3.0) >> first << ()
    play.at(6.0) >> msgspec.structs.replace(first, at_once=True)
    assert {each.order for each in play.of(Send)} == {WindDown("the launcher got it", signal, at_once=True)}


def test_a_first_signal_while_a_verdict_is_carried_out_is_passed_on_and_that_of_the_next_node_kills_nobody() -> None:
    play = running() >> NodeFailed("a", 0, "rank 0 failed") >> SIGNALLED
    assert {each.order for each in play.of(Send)} == {WindDown(SIGNALLED.reason, 15)}
    play.at(3.0) >> SIGNALLED << ()
    play.at(6.0) >> AGAIN
    assert {each.order.at_once for each in play.of(Send)} == {True}


def under_a_new_leader() -> Play:
    play = new_leader(msgspec.structs.replace(of_nodes(IN_CYCLE_4, "a", "b"), stop_signal=15, stop_reason="SIGTERM"))
    play >> stands("a", 0) >> stands("b", 1)
    assert orders_to(play, WindDown) == ["a", "b"]
    return play


def test_the_first_signal_of_a_node_kills_nobody_where_a_command_or_another_leader_has_begun_the_stop() -> None:
    for play in (running() >> SUPERVISOR_ENDS, running() >> BY_KIM, under_a_new_leader()):
        play.at(3.0) >> SIGNALLED << ()
        play >> AGAIN
        assert {each.order.at_once for each in play.of(Send)} == {True}


def test_the_end_of_one_nodes_supervisor_after_a_signal_shortens_the_time_of_no_other_node() -> None:
    play = running() >> SIGNALLED
    play.at(10.0) >> SUPERVISOR_ENDS << ()


def test_a_command_that_the_last_leader_did_not_hear_shortens_the_time_of_all_and_none_is_carried_out_twice() -> None:
    play = under_a_new_leader() >> BY_KIM
    assert {each.order for each in play.of(Send)} == {WindDown("stopped by kim")}
    running() >> BY_KIM >> BY_KIM << ()


@pytest.mark.parametrize("asked", [SIGNALLED, StopAsked("stopped by kim", 0, grace_s=600.0)])
def test_ranks_of_a_node_that_comes_back_during_a_stop_have_as_much_time_as_the_others(asked: StopAsked) -> None:
    play = running() >> asked
    again = Send("b", WindDown(asked.reason, asked.signal, grace_s=asked.grace_s))
    play.at(2.0) >> NodeStands("b", JobRules("job", 2), MemberState.FAILED, 0) << again
    play >> NodeLost("b", "node b is lost") >> JobOpened("b", JobRules("job", 2)) << again


def test_a_second_signal_of_a_node_counts_however_soon_after_the_first_the_leader_hears_it() -> None:
    play = running() >> SIGNALLED >> AGAIN
    assert {each.order for each in play.of(Send)} == {WindDown(AGAIN.reason, 15, at_once=True)}
    play = new_leader(msgspec.structs.replace(of_nodes(IN_CYCLE_4, "a", "b"), verdict=FAILED))
    play >> stands("a", 0) >> stands("b", 1) >> AGAIN
    assert {each.order.at_once for each in play.of(Send)} == {True}


def test_an_operators_sigkill_ends_everything_at_once_however_soon_after_another_stop_the_leader_hears_it() -> None:
    for play in (running() >> SIGNALLED, under_a_new_leader()):
        play >> StopAsked("by kim", 9, at_once=True)
        assert {each.order for each in play.of(Send)} == {WindDown("by kim", 9, at_once=True)}


@pytest.mark.parametrize("kill", [AGAIN, StopAsked("by kim", 9, at_once=True)])
@pytest.mark.parametrize("before", [(), (SIGNALLED,), (NodeFailed("a", 0, "rank 0 failed"),), (TERMINATED,)])
def test_a_kill_gives_no_rank_time_be_it_the_first_news_or_of_a_node_that_comes_back(
    before: tuple[Event, ...], kill: StopAsked
) -> None:
    play = running()
    for each in before:
        play >> each
    again = (NodeStands("b", JobRules("job", 2), MemberState.FAILED, 0), JobOpened("b", JobRules("job", 2)), BY_KIM)
    for event in (kill, *again):
        play >> event
        assert {each.order.at_once for each in play.of(Send)} == {True}
    assert leader_takeover.ledger_of(play.state).stop_at_once, "under the next leader, too"


@pytest.mark.parametrize("before", [SIGNALLED, NodeFailed("a", 0, "rank 0 failed"), TERMINATED])
@pytest.mark.parametrize("is_back_with_ranks", [True, False])
def test_a_kill_asked_for_on_a_node_that_its_leader_did_not_hear_is_one_once_it_hears_how_the_node_stands(
    before: Event, is_back_with_ranks: bool
) -> None:
    play = running() >> before
    back = MemberState.FAILED if is_back_with_ranks else MemberState.STOPPED
    asked = NodeStands("b", JobRules("job", 2), back, 0, stop_reason="by kim", stop_signal=15)
    play >> asked
    assert [each for each in play.of(Send) if each.order.at_once] == [], "a first signal concerns its node"
    killed = msgspec.structs.replace(asked, stop_at_once=True)
    play >> killed
    assert Send("a", WindDown("by kim", 15, at_once=True)) in play.last
    assert leader_takeover.ledger_of(play.state).stop_at_once, "under the next leader, too"
    play >> killed
    assert "a" not in orders_to(play, WindDown), "it is carried out once"


def test_a_kill_that_is_heard_when_all_nodes_have_stopped_is_the_stop_that_a_ranks_end_has_announced() -> None:
    play = stopped(running() >> TERMINATED)
    killed = {"stop_reason": "by kim", "stop_signal": 9, "stop_at_once": True}
    play >> NodeStands("b", JobRules("job", 2), MemberState.STOPPED, 0, **killed)  # pyright: ignore
    assert verdict(play) == Verdict(JobState.STOPPED, 128 + 9, "by kim")


def test_a_job_that_may_not_restart_ends_everywhere_with_the_code_that_says_so() -> None:
    play = running(max_restarts=3) >> JobForbidden("another try would end alike")
    play >> JobForbidden("the same again") << ()
    assert verdict(stopped(play)) == Verdict(JobState.FAILED, 93, "another try would end alike")
    assert verdict(stopped(running() >> JobForbidden("no key", 78))).exit_code == 78


def test_advice_that_comes_too_late_changes_no_verdict() -> None:
    play = running() >> NodeSucceeded("a", 0) >> NodeSucceeded("b", 0) >> JobForbidden("x")
    assert verdict(stopped(play)).state is JobState.SUCCEEDED


def test_a_command_after_a_signal_shortens_the_grace() -> None:
    play = running() >> SIGNALLED
    first_s = coordinator.next_deadline_s(play.state) or 0.0
    play.at(2.0) >> BY_KIM
    assert {each.order for each in play.of(Send)} == {WindDown("stopped by kim")}
    assert (coordinator.next_deadline_s(play.state) or 0.0) < first_s
    assert verdict(stopped(play)).reason == "the launcher got SIGTERM"


def test_a_signal_does_not_change_a_verdict_that_was_reached() -> None:
    play = running() >> NodeFailed("a", 0, "rank 0 failed")
    play >> SIGNALLED
    assert verdict(stopped(play)).state is JobState.FAILED


@pytest.mark.parametrize("nodes_stop_first", [True, False])
def test_a_stop_that_a_ranks_end_has_announced_is_the_verdict_though_the_budget_is_used_up(nodes_stop_first: bool):
    play = running() >> TERMINATED
    assert [each.order.signal for each in play.of(Send)] == [0, 0]
    if nodes_stop_first:
        stopped(play) << ()
    play.at(STOP_FOLLOWS_S - 0.1) >> SIGNALLED
    assert {each.order for each in play.of(Send)} >= {WindDown("the launcher got SIGTERM", 15)}
    if not nodes_stop_first:
        assert coordinator.next_deadline_s(play.state) == play.now_s + 1800.0 + job_termination.WIND_DOWN_S
        ledger = leader_takeover.ledger_of(play.state)
        assert (ledger.verdict, ledger.stop_signal) == (None, 15), "the next leader ends it the same way"
        stopped(play)
    assert verdict(play) == Verdict(JobState.STOPPED, 128 + 15, "the launcher got SIGTERM")


def test_a_node_whose_ranks_had_all_ended_before_its_signal_asks_for_the_stop_too() -> None:
    play = running() >> TERMINATED >> NodeStopped("b", all_succeeded=False)
    play >> LeaveAsked("a", "a drain", with_ranks=True) << ()
    play >> LeaveAsked("a", SIGNALLED.reason, 15, or_stop=True) >> NodeStopped("a", all_succeeded=False)
    assert verdict(play) == Verdict(JobState.STOPPED, 128 + 15, SIGNALLED.reason)


@pytest.mark.parametrize("nodes_stop_first", [True, False])
def test_a_rank_that_somebody_else_has_terminated_is_a_failure_soon(nodes_stop_first: bool):
    play = running() >> TERMINATED
    if nodes_stop_first:
        stopped(play) << ()
    assert coordinator.next_deadline_s(play.state) == STOP_FOLLOWS_S
    assert {each.order.verdict for each in play.of(Send)} == ({None} if not nodes_stop_first else set())
    play.at(STOP_FOLLOWS_S) >> DeadlineReached()
    failed = Verdict(JobState.FAILED, 1, f"{TERMINATED.reason}; restarts used 0 of 0")
    told = [each for each in play.of(Send) if isinstance(each.order, WindDown)]
    assert told == [Send(node, WindDown(failed.reason, verdict=failed)) for node in NODES], "in case the ledger is lost"
    if not nodes_stop_first:
        assert (coordinator.next_deadline_s(play.state) or 0.0) > job_termination.WIND_DOWN_S
        play >> SIGNALLED
        stopped(play)
    assert verdict(play) == failed


def test_a_workload_that_asked_to_end_is_not_taken_for_a_stop() -> None:
    play = running(max_restarts=3) >> msgspec.structs.replace(TERMINATED, restart_allowed=False)
    assert verdict(stopped(play)).state is JobState.FAILED


def test_the_verdict_names_the_failure_that_came_first_on_any_node() -> None:
    play = running() >> NodeFailed("a", 0, "rank 0 lost its peer", first_failure="rank 0 lost its peer")
    play.at(5.0) >> NodeStopped("a", all_succeeded=False, cause=Cause("rank 0 lost its peer", 5.5))
    play.at(6.0) >> NodeStopped("b", all_succeeded=False, cause=Cause("rank 3 raised", 9.0))
    assert verdict(play).reason == "rank 3 raised; restarts used 0 of 0"
    assert [each.event.kind for each in play.of(Publish)] == ["root_cause_found"]


def test_the_verdict_on_a_fault_in_a_round_names_what_came_before_it() -> None:
    """Rank 2 had asked that the workload ends at the next fault, which was the one of node a."""
    play = running(max_restarts=3) >> NodeFailed("a", 0, "rank 0 raised", first_failure="rank 0 raised")
    lost, asked = "rank 2 lost its peer", "rank 2 asked to end the job; then rank 2 lost its peer"
    play >> NodeFailed("b", 0, asked, restart_allowed=False, first_failure=lost)
    play.at(1.0) >> NodeStopped("a", all_succeeded=False, cause=Cause("rank 0 raised", 2.0))
    play >> NodeStopped("b", all_succeeded=False, cause=Cause(lost, 0.5))
    assert verdict(play).reason == "rank 2 asked to end the job; then rank 0 raised"
    assert [each.event.kind for each in play.of(Publish)] == ["root_cause_found"]


def test_a_report_that_comes_late_makes_no_failure_younger_than_it_was_seen() -> None:
    play = running() >> NodeFailed("a", 0, "rank 0 raised", first_failure="rank 0 raised")
    play.at(1.0) >> NodeStopped("b", all_succeeded=False, cause=Cause("rank 3 lost its peer", 0.9))
    play.at(9.0) >> NodeStopped("a", all_succeeded=False, cause=Cause("rank 0 raised", 1.0))
    assert verdict(play).reason == "rank 0 raised; restarts used 0 of 0"


def test_a_node_that_reports_no_failure_of_its_own_leaves_what_was_seen() -> None:
    play = running() >> NodeFailed("a", 0, "rank 0 was killed by SIGKILL", first_failure="rank 0 was killed by SIGKILL")
    (
        play.at(5.0)
        >> NodeStopped("b", all_succeeded=False, cause=Cause("rank 3 lost its peer", 60.0))
        >> NodeLost("a", "x")
    )
    assert verdict(play).reason == "rank 0 was killed by SIGKILL; restarts used 0 of 0"


def test_the_verdict_names_no_failure_of_an_older_cycle_that_a_node_has_told_since() -> None:
    rules = JobRules("job", 2, restart=RestartRules(max_restarts=1, min_nodes=2))
    play: Play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    for node in ("a", "b", "d"):
        play >> JobOpened(node, rules)
    for node in ("a", "b", "d"):
        play >> NodeJoined(node, -1)
    play >> NodeLost("b", "node b is lost") >> NodeJoined("a", 0)
    assert (play.state.cycle, play.state.parts) == (1, ("a", "d"))
    play >> NodeStands("b", rules, MemberState.FAILED, 0)
    play >> NodeJoined("b", 0, cause=Cause("rank 3 lost its peer", 15.0))
    play.at(3600.0) >> NodeFailed("a", 1, "rank 0 raised", first_failure="rank 0 raised")
    play >> NodeStopped("a", all_succeeded=False, cause=Cause("rank 0 raised", 0.1))
    assert "root_cause_found" not in [each.event.kind for each in play.of(Publish)]
    assert verdict(stopped(play, nodes=("b", "d"))).reason.startswith("rank 0 raised; ")


def test_the_verdict_names_no_failure_that_the_cycle_has_gone_on_without() -> None:
    rules = RestartRules(policy=RestartPolicyName.MIN_HEALTHY, min_nodes=2)
    elastic = JobRules("job", 2, restart=rules, rendezvous=RendezvousRules(max_nodes=3, elastic=True))
    play: Play = Playbook(coordinator.step, coordinator.initial_state("job"), jitter=0.0)
    for node in ("a", "b", "c"):
        play >> JobOpened(node, elastic)
    for node in ("a", "b", "c"):
        play >> NodeJoined(node, -1)
    play >> StoreServed("a", 0, "10.0.0.1", 29500)
    play >> NodeFailed("b", 0, "rank 2 raised", first_failure="rank 2 raised")
    assert play.state.vacant == ("b",)
    play >> NodeJoined("b", 0, cause=Cause("rank 2 raised", 0.1))
    play.at(3600.0) >> NodeFailed("a", 0, "rank 0 raised", first_failure="rank 0 raised")
    play >> NodeStopped("a", all_succeeded=False, cause=Cause("rank 0 raised", 0.1))
    assert verdict(stopped(play, nodes=("b", "c"))).reason.startswith("rank 0 raised; ")


def test_a_lost_node_of_the_cycle_that_is_back_as_the_job_ends_still_tells_what_came_first() -> None:
    play = running() >> NodeFailed("a", 0, "rank 0 lost its peer", first_failure="rank 0 lost its peer")
    play >> NodeLost("b", "node b is lost") >> NodeStands("b", JobRules("job", 2), MemberState.FAILED, 0)
    play.at(5.0) >> NodeStopped("a", all_succeeded=False, cause=Cause("rank 0 lost its peer", 5.5))
    play.at(6.0) >> NodeStopped("b", all_succeeded=False, cause=Cause("rank 3 raised", 9.0))
    assert verdict(play).reason == "rank 3 raised; restarts used 0 of 0"


def test_a_node_that_does_not_stop_is_given_up() -> None:
    play = running() >> StopAsked("stopped by kim", 0)
    play >> NodeStopped("a", all_succeeded=False) << ()
    until_s = coordinator.next_deadline_s(play.state)
    assert until_s is not None
    play.at(until_s - 0.1) >> DeadlineReached() << ()
    play.at(until_s) >> DeadlineReached()
    assert verdict(play) == Verdict(JobState.STOPPED, 1, "stopped by kim")


def test_an_operators_stop_tells_schedulers_not_to_start_the_job_again() -> None:
    assert verdict(stopped(running() >> StopAsked("by kim", 0, is_final=True))).exit_code == 93
    assert verdict(stopped(running() >> StopAsked("the supervisor ends", 0))).exit_code == 1


def test_an_operators_stop_is_final_though_a_supervisor_was_stopped_first() -> None:
    play = running() >> StopAsked("the supervisor ends", 0) >> StopAsked("by kim", 0, is_final=True)
    assert verdict(stopped(play)).exit_code == 93
    play = running() >> SIGNALLED >> StopAsked("by kim", 0, is_final=True)
    assert verdict(stopped(play)).exit_code == 143


def test_it_is_over_once_every_node_knows_and_not_before() -> None:
    play = stopped(running() >> NodeSucceeded("a", 0) >> NodeSucceeded("b", 0))
    assert not job_termination.is_over(play.state)
    play >> VerdictTaken("a") << ()
    assert not job_termination.is_over(play.state)
    play >> VerdictTaken("b") << ()
    assert job_termination.is_over(play.state)
    assert coordinator.next_deadline_s(play.state) is None


def test_a_node_that_never_says_that_it_knows_is_given_up() -> None:
    play = stopped(running() >> NodeSucceeded("a", 0) >> NodeSucceeded("b", 0)) >> VerdictTaken("a")
    until_s = coordinator.next_deadline_s(play.state)
    assert until_s is not None
    play.at(until_s) >> DeadlineReached() << ()
    assert job_termination.is_over(play.state)


@pytest.mark.parametrize(
    "late", [NodeJoined("late", -1), NodeStopped("a", all_succeeded=False), NodeFailed("b", 0, "x")]
)
def test_a_node_that_comes_later_learns_the_end_and_nobody_changes_it(
    late: NodeJoined | NodeStopped | NodeFailed,
) -> None:
    play = stopped(running() >> StopAsked("stopped by kim", 0))
    for event in (RestartAsked("y"), SIGNALLED, StacksTaken("a", 0, Evidence())):
        play >> event << ()
    play >> late << Send(late.node, Conclude(Verdict(JobState.STOPPED, 1, "stopped by kim")))


def test_a_node_that_opens_the_job_while_it_ends_is_ended_too() -> None:
    play = running() >> StopAsked("stopped by kim", 0)
    play >> JobOpened("late", JobRules("job", 2)) << Send("late", WindDown("stopped by kim"))
    assert verdict(stopped(play, nodes=("a", "b", "late"))).state is JobState.STOPPED


def test_a_lost_node_that_comes_back_while_the_job_ends_learns_the_verdict() -> None:
    """Found by the simulator: it reports its state to an elected leader, which did not wait for it."""
    play = running() >> StopAsked("stopped by kim", 0)
    play >> NodeLost("b", "node b is lost")
    play >> NodeStands("b", JobRules("job", 2), MemberState.OPENED, -1) << Send("b", WindDown("stopped by kim"))
    play >> NodeStopped("a", all_succeeded=False) << ()
    play >> NodeStopped("b", all_succeeded=False)
    assert verdict(play).state is JobState.STOPPED
    assert {each.node for each in play.of(Send)} == {"a", "b"}


def test_stacks_that_come_late_are_still_told() -> None:
    play = running() >> StopAsked("stopped by kim", 0)
    play >> StacksTaken("a", 0, Evidence(notes=("rank 1 could not be asked",)))
    assert [each.event.kind for each in play.of(Publish)] == ["stacks_collected"]
