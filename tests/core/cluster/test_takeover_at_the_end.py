"""A job changes leaders as it ends, after its end, or as its ledger is lost: does nothing begin again?"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec
import pytest

from supervisor.core import fence_times
from supervisor.core.cluster import coordinator, leader_takeover, replacement_fence
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    Event,
    LeaveAsked,
    MemberState,
    NodeJoined,
    NodeLost,
    NodeStopped,
    Publish,
    Record,
    Send,
    StopAsked,
    VerdictTaken,
)
from supervisor.core.cluster.coordinator_states import Gathering, Running
from supervisor.core.facts import JobState, Verdict
from supervisor.core.leader_ledger import Former, Ledger
from supervisor.core.orders import Conclude, JoinAgain, StartCycle, WindDown
from supervisor.core.stop_verdict import STOP_FOLLOWS_S
from supervisor.core.term_numbers import ERA
from tests.core.new_leader import IN_CYCLE_4, RULES, kinds, new_leader, of_nodes, orders_to, recorded, stands

FORMER = Verdict(JobState.SUCCEEDED, 0, "all ranks exited with code 0")


@pytest.mark.parametrize("is_open", [False, True])
def test_a_node_of_the_run_before_that_missed_its_end_is_told_it_and_begins_nothing_in_this_run(is_open: bool):
    play = new_leader(Ledger(), leader="c", former=Former(FORMER, 6))
    if is_open:
        play >> stands("c", None, MemberState.OPENED)
    play >> stands("a", 0, MemberState.JOINED)
    assert [each.order.verdict for each in play.of(Send) if each.node == "a"] == [FORMER]
    play >> VerdictTaken("a")
    play >> stands("spare", None, MemberState.JOINED, met_term=6)
    assert orders_to(play, Conclude) == ["spare"]
    play >> (NodeJoined("c", -1) if is_open else stands("c", None, MemberState.JOINED))
    assert isinstance(play.state.phase, Gathering)
    assert (play.state.cycle, list(play.state.members)) == (-1, ["c"])
    play >> stands("b", None, MemberState.JOINED, met_term=7)
    assert orders_to(play, StartCycle) == ["b", "c"], "b has left this leader, and comes back"
    play >> NodeLost("b", "silent")
    play >> stands("b", 1, cycle=0, met_term=7)
    assert orders_to(play, JoinAgain) == ["b"], "it is of this run, and only comes back"


def test_the_next_leader_of_a_run_knows_of_the_run_before():
    """Seed 20876 of the simulator: it took in a node that had missed the end of the run before."""
    former = Former(FORMER, 6)
    play = new_leader(Ledger(), leader="c", former=former)
    play >> stands("c", None, MemberState.JOINED) >> stands("d", None, MemberState.JOINED)
    (ledger,) = [each.ledger for each in play.of(Record)]
    assert ledger.former == former
    play = new_leader(ledger, leader="d")
    play >> stands("d", 1, cycle=0, met_term=7, restarts_used=0)
    play >> stands("spare", None, MemberState.JOINED, met_term=6)
    assert [each.order.verdict for each in play.of(Send) if each.node == "spare"] == [FORMER]
    play >> stands("c", 0, cycle=0, met_term=7, restarts_used=0)
    assert isinstance(play.state.phase, Running)
    play >> stands("a", 0, MemberState.JOINED)
    assert [each.order.verdict for each in play.of(Send) if each.node == "a"] == [FORMER]


def test_what_was_recorded_is_lost_and_the_nodes_know_better():
    play = new_leader(Ledger())
    play >> stands("b", 1) << ()
    play >> stands("a", 0)
    assert isinstance(play.state.phase, Running)
    assert (play.state.cycle, play.state.policy.used) == (4, 1)
    assert recorded(play) == [Ledger(cycle=4, opened=4, restarts_used=1)]


def test_the_ledger_is_lost_and_nothing_runs_so_nothing_begins_before_all_nodes_are_there():
    """A reported verdict may be lost with its lease: a node that missed the end must not begin the job again."""
    play = new_leader(Ledger(), leader="b")
    play >> stands("b", 1, MemberState.JOINED, left_ago_s=replacement_fence.KEPT_S) << ()
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    assert kinds(play) == ["rendezvous_waits"]
    give_up_s = fence_times.TAKE_OVER_S + RULES.rendezvous.join_timeout_s
    assert coordinator.next_deadline_s(play.state) == give_up_s
    play.at(give_up_s) >> DeadlineReached()
    assert orders_to(play, Conclude) == ["b"]
    assert "its ledger is lost" in play.of(Send)[0].order.verdict.reason
    assert not recorded(play)


def test_the_ledger_is_lost_and_all_nodes_of_the_cycle_have_ended_well():
    play = new_leader(Ledger())
    play >> stands("a", 0, MemberState.STOPPED, all_succeeded=True)
    play >> stands("b", 1, MemberState.SUCCEEDED)
    assert orders_to(play, WindDown) == ["a", "b"]
    play >> NodeStopped("b", all_succeeded=True)
    (verdict,) = {each.order.verdict for each in play.of(Send) if isinstance(each.order, Conclude)}
    assert verdict == FORMER


@pytest.mark.parametrize("state", [MemberState.FAILED, MemberState.STOPPED, MemberState.INFORMED])
@pytest.mark.parametrize("verdict", [FORMER, Verdict(JobState.FAILED, 93, "no progress in 3 cycles")])
def test_the_ledger_is_lost_with_the_verdict_which_a_node_still_knows(state: MemberState, verdict: Verdict):
    """Seeds 110156376 and 110220461 of the simulator: 'node b has given up the job'."""
    play = new_leader(Ledger(), term=ERA + 7)
    play >> stands("a", 0, MemberState.FAILED, reason=verdict.reason)
    play >> stands("b", 1, state, reason=verdict.reason, verdict=verdict) >> NodeStopped("b", all_succeeded=True) << ()
    play.at(leader_takeover.TAKE_OVER_S) >> DeadlineReached()
    assert {each.order for each in play.of(Send)} == {WindDown(verdict.reason, verdict=verdict)}
    play >> NodeStopped("a", all_succeeded=True)
    assert {each.order for each in play.of(Send)} == {Conclude(verdict)}


def test_a_node_that_ended_alone_does_not_end_the_job_that_the_ledger_knows_to_go_on():
    """Its leader could not record that verdict, which so counted for the nodes of that leader only."""
    ledger = Ledger(cycle=4, opened=5, parts=("a", "b"), processes=("a1", "b1"), term=6)
    play = new_leader(ledger)
    play >> stands("a", 0, MemberState.JOINED)
    play >> stands("b", 1, MemberState.INFORMED, verdict=Verdict(JobState.FAILED, 1, "Not recorded"))
    assert {each.order.next_cycle for each in play.of(Send) if isinstance(each.order, JoinAgain)} == {5}
    assert not orders_to(play, WindDown)
    assert isinstance(play.state.phase, Gathering)


def test_a_newcomer_that_ended_alone_before_it_met_the_leader_does_not_end_the_job():
    play = new_leader()
    play >> stands("a", 0, store_host="h", store_port=1) >> stands("b", 1)
    assert isinstance(play.state.phase, Running)
    play >> stands("c", None, MemberState.INFORMED)
    assert not orders_to(play, WindDown)
    assert isinstance(play.state.phase, Running)
    assert play.state.members["c"].state is MemberState.REFUSED


def test_a_newcomer_that_was_stopped_alone_does_not_end_a_job_that_has_not_begun_yet():
    play = new_leader(Ledger(), others_may_train=False)
    play >> stands("a", None, MemberState.JOINED)
    play >> stands("c", None, MemberState.INFORMED, stop_reason="by kim", stop_is_final=True)
    assert not orders_to(play, WindDown)
    assert play.state.members["c"].state is MemberState.REFUSED
    play >> stands("b", None, MemberState.JOINED)
    assert orders_to(play, StartCycle) == ["a", "b"]


def test_the_ledger_is_lost_and_a_node_that_runs_is_not_held_up_by_one_that_is_lost():
    play = new_leader(Ledger())
    play >> stands("a", 0)
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached() << ()
    play.at(fence_times.LEFT_S) >> DeadlineReached()
    assert recorded(play) == [Ledger(cycle=4, opened=5, restarts_used=2)]


def test_the_ledger_is_lost_and_what_ran_has_ended_so_the_job_goes_on_without_the_lost_nodes():
    play = new_leader(Ledger(), leader="x")
    play >> stands("a", 0, MemberState.JOINED, left_ago_s=1.0) << ()
    play >> stands("x", None, MemberState.JOINED)
    play.at(fence_times.LEFT_S - 1.0) >> DeadlineReached()
    assert recorded(play) == [Ledger(cycle=5, opened=5, restarts_used=2)]
    assert orders_to(play, StartCycle) == ["a", "x"]


def test_the_ledger_is_lost_and_a_spare_that_has_just_left_its_leader_waits_for_that_leaders_workers():
    """Seed 577503 of the simulator: the leader hears nobody any more, and its workers end 6 s after it last did."""
    play = new_leader(Ledger())
    play >> stands("a", None, MemberState.JOINED, met_term=6, left_ago_s=0.5)
    play.at(1.0) >> stands("b", None, MemberState.JOINED, met_term=6, left_ago_s=1.0)
    play.at(leader_takeover.TAKE_OVER_S) >> DeadlineReached()
    assert not orders_to(play, StartCycle)
    assert coordinator.next_deadline_s(play.state) == fence_times.LEFT_S
    play.at(fence_times.LEFT_S) >> DeadlineReached()
    assert orders_to(play, StartCycle) == ["a", "b"]


@pytest.mark.parametrize("ledger", [of_nodes(IN_CYCLE_4, "a", "b"), Ledger()])
def test_the_data_is_lost_and_a_newer_cycle_than_the_first_nodes_know_goes_on(ledger: Ledger):
    """Seed 501047 of the simulator. Nodes a and b were cut off and have ended their workers; c and d went on."""
    play = new_leader(ledger, term=ERA + 7)
    play >> stands("a", 0, MemberState.JOINED)
    play >> stands("b", 1, MemberState.JOINED) << ()
    play.at(1.0) >> stands("c", 0, cycle=5)
    play >> stands("d", 1, cycle=5)
    assert isinstance(play.state.phase, Running)
    assert (play.state.cycle, play.state.parts) == (5, ("c", "d"))
    assert not orders_to(play, StartCycle)


@pytest.mark.parametrize("ledger", [of_nodes(IN_CYCLE_4, "a", "b"), Ledger()])
def test_the_data_is_lost_and_nobody_knows_a_newer_cycle_by_the_time_when_all_would_have_said_so(ledger: Ledger):
    play = new_leader(ledger, term=ERA + 7)
    play >> stands("a", 0, MemberState.JOINED)
    play >> stands("b", 1, MemberState.JOINED) << ()
    assert coordinator.next_deadline_s(play.state) == leader_takeover.TAKE_OVER_S
    play.at(leader_takeover.TAKE_OVER_S) >> DeadlineReached()
    assert orders_to(play, StartCycle) == ["a", "b"]
    assert play.state.cycle == 5


def test_the_data_is_lost_and_a_cycle_that_is_at_work_on_all_its_nodes_goes_on_at_once():
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"), term=ERA + 7)
    play >> stands("a", 0)
    play >> stands("b", 1, MemberState.SUCCEEDED)
    assert isinstance(play.state.phase, Running)


def test_a_job_that_has_ended_or_is_stopped_is_not_begun_again():
    verdict = Verdict(JobState.FAILED, 1, "the budget is used up")
    play = new_leader(Ledger(4, 4, 3, verdict=verdict))
    play >> stands("a", 0)
    play >> stands("b", 1, MemberState.STOPPED)
    assert orders_to(play, WindDown) == ["a", "b"]
    play >> NodeStopped("a", all_succeeded=False)
    assert {each.order.verdict for each in play.of(Send) if isinstance(each.order, Conclude)} == {verdict}

    stopped = new_leader(Ledger(4, 4, 1, stop_signal=15, stop_reason="holdfast run got SIGTERM"))
    stopped >> stands("a", 0)
    stopped >> StopAsked("holdfast run got SIGTERM", 15)
    stopped >> stands("b", 1)
    assert [each.order for each in stopped.of(Send)] == [WindDown("holdfast run got SIGTERM", 15)] * 2


def test_an_end_that_nobody_is_left_to_hear_ends_the_next_run_and_says_so():
    play = new_leader(Ledger(4, 4, 1, verdict=FORMER), leader="a")
    play >> stands("a", None, MemberState.JOINED)
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    assert "start the job again for a new run" in play.of(Publish)[0].event.reason
    play = new_leader(Ledger(4, 4, 1, verdict=FORMER), leader="a")
    play >> stands("a", None, MemberState.JOINED, met_term=6)
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    assert kinds(play) == [], "it is of that run"


def test_an_end_that_is_decided_needs_no_witness():
    ended = Ledger(4, 4, 3, verdict=Verdict(JobState.FAILED, 1, "x"), parts=("a", "b"), witnesses=("a", "b"))
    play = new_leader(ended, leader="c")
    play >> stands("c", None, MemberState.JOINED)
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    assert orders_to(play, WindDown) == ["c"]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_stop_of_which_no_leader_knew_ends_the_job_although_another_rank_has_failed_of_it(order: tuple[str, str]):
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"))
    known = {
        "a": stands("a", 0, MemberState.FAILED, reason="rank 0 lost its peer"),
        "b": stands("b", 1, MemberState.STOPPED, stop_reason="the launcher got SIGTERM", stop_signal=15),
    }
    for node in order:
        play >> known[node]
    assert orders_to(play, WindDown) == ["a", "b"]
    assert "restart_decided" not in kinds(play)
    play >> StopAsked("the launcher got SIGTERM", 15)
    assert orders_to(play, WindDown) == [], "nobody has asked again"
    play >> NodeStopped("a", all_succeeded=False)
    assert {each.order.verdict for each in play.of(Send) if isinstance(each.order, Conclude)} == {
        Verdict(JobState.STOPPED, 143, "the launcher got SIGTERM")
    }


def test_a_stop_on_a_node_that_comes_late_ends_the_job():
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"))
    for node, rank in (("a", 0), ("b", 1)):
        play >> stands(node, rank)
    play >> NodeLost("b", "silent")
    assert isinstance(play.state.phase, Gathering)
    play >> stands("b", 1, MemberState.STOPPED, stop_reason="stopped by kim")
    assert orders_to(play, WindDown) == ["a", "b"]


@pytest.mark.parametrize("asked_of", ["the leader before", "this leader", "nobody"])
def test_an_end_that_may_be_a_stop_may_be_one_under_the_next_leader_too(asked_of: str):
    """A scheduler ends ranks and launchers of all nodes, and the leader's node leaves."""
    failed = Verdict(JobState.FAILED, 1, "rank 0 was killed by SIGTERM; restarts used 1 of 1")
    stop = "SIGTERM" if asked_of == "the leader before" else ""
    play = new_leader(msgspec.structs.replace(IN_CYCLE_4, verdict=failed, may_be_stop=True))
    play >> stands("a", 0, MemberState.STOPPED, stop_reason=stop, stop_signal=15) >> stands("b", 1, MemberState.STOPPED)
    if asked_of == "this leader":
        play >> StopAsked("SIGTERM", 15)
    if asked_of == "nobody":
        play.at(STOP_FOLLOWS_S) >> DeadlineReached()
    ended = failed if asked_of == "nobody" else Verdict(JobState.STOPPED, 128 + 15, "SIGTERM")
    assert {each.order.verdict for each in play.of(Send) if isinstance(each.order, Conclude)} == {ended}
    (ledger,) = recorded(play)
    assert (ledger.verdict, ledger.may_be_stop) == (ended, False)


@pytest.mark.parametrize("asked", [StopAsked("SIGTERM", 15), LeaveAsked("a", "SIGTERM", 15, or_stop=True)])
def test_a_stop_that_comes_during_the_take_over_counts_before_the_faults_that_the_nodes_report(asked: Event):
    play = new_leader()
    play >> stands("a", 0, MemberState.JOINED, reason="rank 0 was killed by SIGTERM") >> asked
    play >> stands("b", 1, MemberState.JOINED)
    assert {each.order.signal for each in play.of(Send) if isinstance(each.order, WindDown)} == {15}
    assert orders_to(play, JoinAgain) == []
