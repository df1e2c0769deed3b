"""Which nodes leave a job that goes on, when, and what do the others do?"""

# pyright: reportUnusedExpression=false

from __future__ import annotations

import msgspec
import pytest

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    JobOpened,
    LeaveAsked,
    MemberState,
    NodeCordoned,
    NodeHeard,
    NodeJoined,
    NodeLost,
    NodeSilent,
    NodeStands,
    NodeStopped,
    Record,
    Send,
    VerdictTaken,
)
from supervisor.core.cluster.coordinator_states import Gathering, Running, WindingDown
from supervisor.core.facts import JobRules, JobState, RestartRules, Verdict
from supervisor.core.fence_times import TAKE_OVER_S
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import Conclude, JoinAgain, Order, Resign, StartCycle, Stay, WindDown
from tests.core.cluster.test_lost_node_replacement import LOST, arrive, call, spare, tolerated
from tests.core.new_leader import IN_CYCLE_4, kinds, new_leader, of_nodes, orders_to, stands
from tests.core.playbook import Playbook

TERM = 15
ASKED = "holdfast run got SIGTERM"


def running(*nodes: str, needed: int = 2, leader: str = "a", budget: int = 3) -> Playbook[coordinator.State]:
    """Returns a job whose leader was not elected. The nodes after the first `needed` are spares."""
    play = Playbook(coordinator.step, coordinator.initial_state("job", leader=leader), jitter=0.0)
    rules = JobRules("job", 1, restart=RestartRules(max_restarts=budget, min_nodes=needed))
    for node in nodes:
        play >> JobOpened(node, rules)
    for node in nodes:
        play >> NodeJoined(node, -1)
    assert isinstance(play.state.phase, Running)
    return play


def signalled(node: str) -> LeaveAsked:
    return LeaveAsked(node, ASKED, TERM, or_stop=True)


def told(play: Playbook[coordinator.State], node: str, kind: type[Order]) -> Order:
    (order,) = (each.order for each in play.of(Send) if each.node == node and isinstance(each.order, kind))
    return order


def verdict(play: Playbook[coordinator.State], node: str) -> Verdict:
    order = told(play, node, Conclude)
    assert isinstance(order, Conclude)
    return order.verdict


def test_a_spare_leaves_alone_and_the_job_goes_on() -> None:
    play = running("a", "b", "c")
    play >> signalled("c")
    reason = f"node c has left the job ({ASKED}); the job goes on without it"
    play << Send("c", Conclude(Verdict(JobState.STOPPED, 0, reason)))
    assert isinstance(play.state.phase, Running)
    play >> VerdictTaken("c") << ()
    play >> NodeJoined("c", -1) << ()
    play >> NodeLost("c", "its connection ended") << ()


@pytest.mark.parametrize("how", ["its workers still end", "it joins again", "its next process gets no part"])
def test_a_node_that_the_cycle_goes_on_without_leaves_alone(how: str) -> None:
    """Its fault was tolerated, or a wrapped call goes on without it."""
    play = tolerated("b")
    if how == "its workers still end":
        play >> signalled("b") << ()
        play >> NodeJoined("b", 0)
    elif how == "it joins again":
        play >> NodeJoined("b", 0) >> signalled("b")
    else:
        play = spare(arrive(call("a", "b", max_restarts=0) >> LOST, 0, 1), "b") >> signalled("b")
    assert [each.node for each in play.of(Send)] == ["b"]
    assert verdict(play, "b").exit_code == 0
    assert isinstance(play.state.phase, Running)


@pytest.mark.parametrize("or_stop", [False, True])
def test_a_node_that_the_cycle_went_on_without_does_not_leave_a_round_that_needs_it(*, or_stop: bool) -> None:
    play = tolerated("b", "a", "b", "c", min_nodes=2) >> NodeJoined("b", 0) >> NodeLost("c", "node c is lost")
    assert isinstance(play.state.phase, Gathering), "1 healthy node is left where 2 are needed"
    play >> LeaveAsked("b", "drained", TERM if or_stop else 0, with_ranks=True, or_stop=or_stop)
    assert play.state.members["b"].state is MemberState.JOINED
    assert orders_to(play, Conclude) == []
    assert orders_to(play, WindDown if or_stop else Stay) == (["a", "b"] if or_stop else ["b"])


def test_a_node_that_has_left_sees_no_other_verdict() -> None:
    play = running("a", "b", "c") >> signalled("c")
    play >> signalled("a")
    assert orders_to(play, WindDown) == ["a", "b"]


def test_a_node_that_has_left_may_come_again_as_a_spare() -> None:
    play = running("a", "b", "c") >> signalled("c")
    play >> JobOpened("c", play.state.rules) >> NodeJoined("c", -1)
    assert play.state.members["c"].is_ready


def test_a_cordoned_node_that_the_next_cycle_does_without_leaves_alone() -> None:
    play = running("a", "b", "c") >> NodeCordoned("b", "a bad fan") >> LeaveAsked("b", "by kim", with_ranks=True)
    for node in ("a", "b"):
        play >> NodeJoined(node, 0)
    assert play.state.parts == ("a", "c")
    play = running("a", "b", "c") >> NodeCordoned("c", "a bad fan") >> signalled("c")
    assert verdict(play, "c").exit_code == 0


def test_a_signal_to_a_node_with_ranks_stops_the_job_as_ever() -> None:
    play = running("a", "b", "c") >> signalled("b")
    assert orders_to(play, WindDown) == ["a", "b", "c"]
    assert isinstance(play.state.phase, WindingDown)
    assert play.state.phase.outcome.reason == ASKED


def test_before_the_first_cycle_nobody_is_a_spare() -> None:
    play = Playbook(coordinator.step, coordinator.initial_state("job", leader="a"), jitter=0.0)
    rules = JobRules("job", 1, restart=RestartRules(min_nodes=2))
    play >> JobOpened("a", rules) >> JobOpened("b", rules) >> NodeJoined("b", -1) >> signalled("b")
    assert isinstance(play.state.phase, WindingDown)


def test_a_drained_node_is_replaced_by_a_spare_and_no_unit_is_used() -> None:
    play = running("a", "b", "c")
    play >> LeaveAsked("b", "holdfast drain by kim", with_ranks=True)
    assert orders_to(play, JoinAgain) == ["a", "b", "c"]
    assert kinds(play) == ["node_leaves"]
    play >> NodeJoined("a", 0)
    assert not orders_to(play, StartCycle), "ranks of node b may still run"
    play >> NodeJoined("b", 0)
    assert verdict(play, "b").exit_code == 0
    assert orders_to(play, StartCycle) == ["a", "c"]
    assert coordinator.restarts_used(play.state) == 0


def test_a_job_that_may_shrink_needs_no_spare() -> None:
    play = running("a", "b", needed=2)
    rules = RestartRules(max_restarts=3, min_nodes=1)
    play = Playbook(coordinator.step, coordinator.initial_state("job", leader="a"), jitter=0.0)
    for node in ("a", "b"):
        play >> JobOpened(node, JobRules("job", 1, restart=rules))
    play >> NodeJoined("a", -1) >> NodeJoined("b", -1)
    play >> LeaveAsked("b", "by kim", with_ranks=True)
    assert verdict(play, "b").exit_code == 0


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("b", "1 other node is there, and a cycle needs 2; start a spare node first, or end the job"),
        ("a", "it leads the job, which ends with it; with --rdzv-backend etcd any node may leave"),
    ],
)
def test_a_node_that_cannot_be_drained_learns_why_and_nothing_changes(node: str, why: str) -> None:
    play = running("a", "b")
    before = play.state
    play >> LeaveAsked(node, "by kim", with_ranks=True)
    order = told(play, node, Stay)
    assert isinstance(order, Stay)
    assert order.reason.startswith(f"cannot take node {node} out of job job: {why}")
    assert play.state == before


def test_a_cordoned_node_that_stays_learns_that_a_restart_waits_for_it() -> None:
    play = running("a", "b") >> NodeCordoned("b", "by kim") >> LeaveAsked("b", "by kim", with_ranks=True)
    order = told(play, "b", Stay)
    assert isinstance(order, Stay)
    assert order.reason.endswith("as it is cordoned, a restart waits for another node, or for holdfast uncordon b")


def test_a_signal_to_leave_that_cannot_be_followed_stops_the_job_and_says_why() -> None:
    play = running("a", "b") >> LeaveAsked("b", ASKED, TERM, with_ranks=True, or_stop=True)
    assert isinstance(play.state.phase, WindingDown)
    assert play.state.phase.outcome.reason.startswith(f"{ASKED}; node b cannot leave the job: 1 other node is there")


def test_a_cordoned_spare_replaces_nobody() -> None:
    play = running("a", "b", "c") >> NodeCordoned("c", "a bad fan") >> LeaveAsked("b", "by kim", with_ranks=True)
    assert orders_to(play, Stay) == ["b"]


DRAINED = LeaveAsked("b", "holdfast drain by kim", with_ranks=True)


def asked_while_the_spare_is_silent(asked: LeaveAsked = DRAINED) -> Playbook[coordinator.State]:
    play = running("a", "b", "c") >> NodeSilent("c")
    play >> asked << ()
    play >> asked << ()
    return play


def test_a_request_that_needs_a_silent_node_is_granted_once_that_is_heard() -> None:
    play = asked_while_the_spare_is_silent() >> NodeHeard("c")
    assert orders_to(play, JoinAgain) == ["a", "b", "c"]
    assert kinds(play) == ["node_leaves"]
    play >> NodeJoined("a", 0) >> NodeJoined("b", 0)
    assert verdict(play, "b").exit_code == 0
    assert play.state.parts == ("a", "c")


def test_a_request_that_needs_a_silent_node_is_refused_once_that_is_lost() -> None:
    play = asked_while_the_spare_is_silent() >> NodeLost("c", "node c is lost")
    assert orders_to(play, Stay) == ["b"]
    play >> NodeStands("c", play.state.rules, MemberState.JOINED, -1)
    assert isinstance(play.state.phase, Running), "it was refused"


def test_a_signal_to_leave_that_needs_a_silent_node_stops_the_job_only_once_that_is_lost() -> None:
    play = asked_while_the_spare_is_silent(LeaveAsked("b", ASKED, TERM, with_ranks=True, or_stop=True))
    play >> NodeLost("c", "node c is lost")
    assert isinstance(play.state.phase, WindingDown)


def test_a_request_of_a_node_that_is_lost_meanwhile_is_forgotten() -> None:
    play = asked_while_the_spare_is_silent() >> NodeLost("b", "node b is lost")
    play >> NodeHeard("c") << ()
    assert not play.state.leaves_asked


def test_a_request_of_a_nodes_lost_process_does_not_hold_for_the_next_one():
    play = asked_while_the_spare_is_silent()
    play >> NodeLost("b", "node b is lost: another process has come in its place", comes_again=True)
    play >> NodeStands("b", play.state.rules, MemberState.FAILED, 0) >> NodeHeard("c")
    assert play.state.members["b"].leaves == ""
    play >> NodeJoined("a", 0) >> NodeJoined("b", 0)
    assert orders_to(play, Conclude) == []


@pytest.mark.parametrize("asked", [DRAINED, LeaveAsked("b", ASKED, TERM, with_ranks=True, or_stop=True)])
@pytest.mark.parametrize("is_heard_first", [False, True])
def test_the_next_process_of_a_lost_node_leaves_nothing_and_stops_nothing(asked: LeaveAsked, is_heard_first: bool):
    play = asked_while_the_spare_is_silent(asked)
    play >> NodeLost("b", "node b is lost: another process has come in its place", comes_again=True)
    if is_heard_first:
        play >> NodeHeard("c")
    play >> NodeStands("b", play.state.rules, MemberState.JOINED, 0)
    if not is_heard_first:
        play >> NodeHeard("c")
    assert isinstance(play.state.phase, Gathering)
    assert play.state.members["b"].leaves == ""


@pytest.mark.parametrize("is_spare_lost_first", [False, True])
def test_a_signal_to_leave_that_waits_as_the_job_fails_is_how_it_ends(is_spare_lost_first: bool) -> None:
    play = running("a", "b", "c", leader="", budget=0) >> NodeSilent("c") >> NodeSilent("b")
    play >> LeaveAsked("a", ASKED, TERM, with_ranks=True, or_stop=True) << ()
    if is_spare_lost_first:
        play >> NodeLost("c", "node c is lost")
        assert isinstance(play.state.phase, Running)
    play >> NodeLost("b", "node b is lost")
    order = told(play, "a", WindDown)
    assert isinstance(order, WindDown)
    assert (order.signal, order.verdict) == (TERM, None)
    if not is_spare_lost_first:
        play >> NodeHeard("c") >> NodeStopped("c", all_succeeded=False)
    play >> NodeStopped("a", all_succeeded=False)
    assert verdict(play, "a") == Verdict(JobState.STOPPED, 128 + TERM, ASKED)


def test_a_drain_that_waits_as_the_job_fails_changes_no_verdict() -> None:
    play = running("a", "b", "c", leader="", budget=0) >> NodeSilent("c")
    play >> LeaveAsked("a", "by kim", with_ranks=True) >> NodeLost("b", "node b is lost")
    play >> NodeStopped("a", all_succeeded=False) >> NodeStopped("c", all_succeeded=False)
    assert verdict(play, "a").exit_code == 1


def test_a_stop_of_the_job_ends_the_wait_for_a_silent_node() -> None:
    play = asked_while_the_spare_is_silent() >> signalled("a")
    assert isinstance(play.state.phase, WindingDown)
    play >> NodeHeard("c") << ()


def after_a_stall_of_the_leader() -> Playbook[coordinator.State]:
    """Returns a job whose nodes have ended their ranks and come back as new processes, one after the other.

    The drained one has said how it stands, the spare has not.
    """
    play = running("a", "b", "c") >> NodeSilent("b") >> NodeSilent("c")
    play >> NodeLost("b", "node b is lost: another process has come in its place", comes_again=True)
    play >> NodeStands("b", play.state.rules, MemberState.FAILED, 0, cordoned="by kim", leave=DRAINED)
    assert (orders_to(play, JoinAgain), orders_to(play, Stay)) == (["b"], [])
    play >> NodeLost("c", "node c is lost: another process has come in its place", comes_again=True)
    assert not orders_to(play, Stay)
    return play


def test_after_a_stall_of_the_leader_a_drained_node_is_answered_once_the_spare_has_come_back() -> None:
    play = after_a_stall_of_the_leader()
    play >> NodeStands("c", play.state.rules, MemberState.JOINED, -1) >> NodeJoined("a", 0)
    play >> NodeJoined("b", 0)
    assert verdict(play, "b").exit_code == 0
    assert play.state.parts == ("a", "c")


def test_after_a_stall_of_the_leader_a_spare_that_goes_before_it_has_said_how_it_stands_is_awaited_no_more() -> None:
    play = after_a_stall_of_the_leader()
    play >> NodeSilent("c") << ()
    play >> NodeLost("c", "node c is lost: its connection ended")
    assert orders_to(play, Stay) == ["b"]


def test_who_asks_twice_is_answered_once() -> None:
    play = running("a", "b", "c") >> LeaveAsked("b", "by kim", with_ranks=True)
    play >> LeaveAsked("b", "by kim", with_ranks=True) << ()
    play >> NodeLost("c", "silent")  # Whoever asked first would not be let go now.
    play >> LeaveAsked("b", "by kim", with_ranks=True) << ()


def test_a_lost_node_has_nothing_to_leave() -> None:
    play = running("a", "b", "c") >> NodeLost("c", "silent")
    play >> signalled("c") << ()


# --- elected leaders ------------------------------------------------------------------------------------------------


def elected(*spares: str, leads: str = "a") -> Playbook[coordinator.State]:
    """Returns a leader that has taken over cycle 4 of nodes a and b."""
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"), leads)
    play >> stands("a", 0, store_host="h", store_port=1)
    for each in spares:
        play >> stands(each, None, MemberState.JOINED)
    play >> stands("b", 1)
    assert isinstance(play.state.phase, Running)
    return play


def test_an_elected_leader_without_ranks_gives_up_the_lead_first() -> None:
    play = elected("c", leads="c") >> signalled("c")
    assert orders_to(play, Resign) == ["c"]
    assert not orders_to(play, Conclude), "the next leader lets it go"
    play >> NodeJoined("c", -1)
    assert not orders_to(play, Resign), "once"


def test_an_elected_leader_with_ranks_leads_until_others_run_them() -> None:
    play = elected("c") >> LeaveAsked("a", "by kim", with_ranks=True)
    assert orders_to(play, JoinAgain) == ["a", "b", "c"]
    for node in ("a", "b"):
        play >> NodeJoined(node, 4)
    assert orders_to(play, StartCycle) == ["b", "c"]
    assert orders_to(play, Resign) == ["a"]


def test_a_new_leader_that_lacks_a_node_answers_once_the_spare_has_come() -> None:
    play = elected()
    play.at(TAKE_OVER_S - 1.0) >> DRAINED << ()
    play >> NodeHeard("a") << ()
    play >> stands("c", None, MemberState.JOINED)
    assert orders_to(play, JoinAgain) == ["a", "b", "c"]
    assert kinds(play) == ["node_leaves"]
    assert coordinator.next_deadline_s(play.state) != TAKE_OVER_S


def test_a_new_leader_that_lacks_a_node_refuses_once_each_node_has_had_the_time_to_come() -> None:
    play = elected()
    play.at(TAKE_OVER_S - 1.0) >> DRAINED << ()
    assert coordinator.next_deadline_s(play.state) == TAKE_OVER_S
    play.at(TAKE_OVER_S) >> DeadlineReached()
    assert orders_to(play, Stay) == ["b"]
    assert coordinator.next_deadline_s(play.state) is None
    play >> DRAINED
    assert orders_to(play, Stay) == ["b"], "at once"


def test_a_new_leader_that_hears_of_a_request_as_it_takes_over_waits_for_the_spare() -> None:
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"))
    play >> stands("a", 0, store_host="h", store_port=1) >> stands("b", 1, leave=DRAINED, cordoned="by kim")
    assert not orders_to(play, Stay)
    play >> stands("c", None, MemberState.JOINED)
    assert orders_to(play, JoinAgain) == ["a", "b", "c"]


def test_a_cycle_goes_on_as_a_node_leaves_that_comes_back_with_ranks_of_an_older_one() -> None:
    play = running("a", "b", "c") >> NodeLost("b", "node b is lost") >> NodeJoined("a", 0)
    assert play.state.parts == ("a", "c")
    play >> NodeStands("b", play.state.rules, MemberState.FAILED, 0, cordoned="by kim", leave=DRAINED)
    assert isinstance(play.state.phase, Running)
    assert orders_to(play, JoinAgain) == ["b"]
    play >> NodeJoined("b", 0)
    assert verdict(play, "b").exit_code == 0
    assert isinstance(play.state.phase, Running)


def test_a_request_that_waits_is_kept_as_nodes_of_a_newer_cycle_show_that_the_ledger_is_old() -> None:
    play = new_leader(of_nodes(Ledger(2, 3, 0), "a", "b"))
    for group_rank, node in enumerate("ab"):
        play >> stands(node, group_rank, MemberState.FAILED, cycle=2)
    assert isinstance(play.state.phase, Gathering)
    play.at(1.0) >> DRAINED << ()
    for group_rank, node in enumerate("cd"):
        play >> stands(node, group_rank, cycle=4)
    assert isinstance(play.state.phase, Running)
    play >> NodeJoined("b", 2)
    assert verdict(play, "b").exit_code == 0


def test_the_next_leader_learns_from_the_node_that_it_leaves() -> None:
    play = elected()
    play >> stands("c", None, MemberState.JOINED, leave=signalled("c"))
    assert verdict(play, "c").exit_code == 0


def test_a_new_leader_lets_a_leaving_spare_go_and_the_cycle_goes_on() -> None:
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"))
    play >> stands("a", 0, store_host="h", store_port=1)
    play >> stands("c", None, MemberState.JOINED, leave=signalled("c"))
    play >> stands("b", 1)
    assert isinstance(play.state.phase, Running)
    assert verdict(play, "c").exit_code == 0


def test_a_new_leader_that_opens_a_round_does_not_place_a_leaving_node() -> None:
    ledger = of_nodes(IN_CYCLE_4, "a", "b")
    play = new_leader(msgspec.structs.replace(ledger, opened=5))
    play >> stands("a", 0, MemberState.JOINED)
    play >> stands("c", None, MemberState.JOINED)
    play >> stands("b", 1, MemberState.JOINED, leave=LeaveAsked("b", "by kim", with_ranks=True))
    assert verdict(play, "b").exit_code == 0
    assert orders_to(play, StartCycle) == ["a", "c"]
    assert not isinstance(play.state.phase, Gathering)


@pytest.mark.parametrize("asked", [DRAINED, msgspec.structs.replace(DRAINED, signal=TERM, or_stop=True)])
def test_what_one_leader_has_granted_holds_for_the_next_one_without_the_spare(asked: LeaveAsked) -> None:
    play = elected("c") >> asked
    assert orders_to(play, JoinAgain) == ["a", "b", "c"]
    (ledger,) = (each.ledger for each in play.of(Record))
    assert ledger.leaving == ("b",)
    play = new_leader(ledger)
    play >> stands("a", 0, MemberState.JOINED) >> stands("b", 1, MemberState.JOINED, leave=asked, cordoned="by kim")
    assert verdict(play, "b").exit_code == 0
    play.at(TAKE_OVER_S) >> DeadlineReached() << ()
    play >> stands("c", None, MemberState.JOINED)
    assert orders_to(play, StartCycle) == ["a", "c"]
    assert [each.ledger.leaving for each in play.of(Record)] == [()]
    assert not play.state.leaving


def test_what_was_granted_in_a_cycle_counts_no_more_in_a_newer_one() -> None:
    ledger = msgspec.structs.replace(of_nodes(IN_CYCLE_4, "a", "b"), opened=5, leaving=("b",))
    play = new_leader(ledger)
    for group_rank, node in enumerate("ab"):
        play >> stands(node, group_rank, cycle=5, leave=DRAINED if node == "b" else None)
    play.at(TAKE_OVER_S) >> DeadlineReached()
    assert orders_to(play, Stay) == ["b"]


@pytest.mark.parametrize("state", [MemberState.FAILED, MemberState.JOINED])
def test_a_node_that_was_to_leave_and_is_lost_before_it_has_left_leaves_when_it_is_back(state: MemberState) -> None:
    """Its leader stood still as it asked, and let it go just before all its nodes came back as by a new connection."""
    play = running("a", "b", "c")
    asked = LeaveAsked("b", "holdfast drain by kim", with_ranks=True)
    play >> asked
    assert orders_to(play, JoinAgain) == ["a", "b", "c"]
    play >> NodeLost("b", "node b is lost: another process has come in its place")
    play >> NodeLost("c", "node c is lost: another process has come in its place")
    back = NodeStands("b", play.state.rules, state, 0, leave=asked)
    play >> back
    play >> NodeStands("c", play.state.rules, MemberState.JOINED, -1)
    play >> NodeJoined("a", 0) >> NodeJoined("b", 0)
    assert play.state.members["b"].state is MemberState.REFUSED, "it has been told that it has left"
    assert (play.state.parts, play.state.policy.used) == (("a", "c"), 0)


def test_the_next_process_of_a_node_that_was_to_leave_takes_part() -> None:
    play = running("a", "b", "c") >> LeaveAsked("b", "holdfast drain by kim", with_ranks=True)
    play >> NodeLost("b", "node b is lost") >> NodeLost("c", "node c is lost")
    play >> NodeStands("b", play.state.rules, MemberState.JOINED, -1) >> NodeJoined("a", 0)
    assert play.state.parts == ("a", "b")
