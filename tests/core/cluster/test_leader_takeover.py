"""When a job changes leaders, what does the new one conclude from the ledger and from the nodes' reports?"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec
import pytest

from supervisor.core import announcements, fence_times
from supervisor.core.cluster import coordinator, job_termination, leader_takeover
from supervisor.core.cluster import status_view as rosters
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    JobOpened,
    LeaveAsked,
    MemberState,
    NodeCordoned,
    NodeDown,
    NodeExcluded,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeStopped,
    NodeSucceeded,
    Publish,
    Record,
    Send,
    VerdictTaken,
)
from supervisor.core.cluster.coordinator_states import Gathering, Running
from supervisor.core.facts import Assignment, JobState, RestartPolicyName
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import Conclude, JoinAgain, Resign, StartCycle, UseStore, WindDown
from tests.core.new_leader import IN_CYCLE_4, RULES, kinds, new_leader, of_nodes, orders_to, recorded, stands


def test_a_running_cycle_goes_on_as_soon_as_all_its_nodes_have_said_how_they_stand():
    play = new_leader()
    play >> stands("b", 1) << ()
    play >> stands("a", 0)
    assert isinstance(play.state.phase, Running)
    assert (play.state.cycle, play.state.parts, play.state.policy.used) == (4, ("a", "b"), 1)
    assert not play.of(Send)
    assert kinds(play) == ["leader_changed"]
    play >> NodeSucceeded("a", 4)
    play >> NodeSucceeded("b", 4)
    assert orders_to(play, WindDown) == ["a", "b"]
    play >> NodeStopped("a", all_succeeded=True)
    play >> NodeStopped("b", all_succeeded=True)
    (verdict,) = {each.order.verdict for each in play.of(Send) if isinstance(each.order, Conclude)}
    assert verdict.state is JobState.SUCCEEDED


def test_a_node_that_says_nothing_is_no_loss_before_the_window_is_over_and_one_fault_then():
    play = new_leader()
    play >> stands("a", None, MemberState.JOINED) << ()
    play >> stands("b", 1) << ()
    play.at(leader_takeover.TAKE_OVER_S - 0.1) >> DeadlineReached() << ()
    play.at(leader_takeover.TAKE_OVER_S) >> DeadlineReached()
    assert recorded(play) == [Ledger(cycle=4, opened=5, restarts_used=2)]
    assert "b" in orders_to(play, JoinAgain)
    play >> NodeFailed("b", 4, "its peer is gone")
    play >> NodeJoined("b", 4)
    assert orders_to(play, StartCycle) == ["a", "b"]
    assert recorded(play) == [Ledger(cycle=5, opened=5, restarts_used=2)]


def test_a_fault_that_nobody_has_decided_upon_takes_its_unit_now():
    play = new_leader()
    play >> stands("a", 0)
    play >> stands("b", 1, MemberState.FAILED, reason="rank 3 was killed by SIGKILL", first_failure="rank 3")
    assert recorded(play) == [Ledger(cycle=4, opened=5, restarts_used=2)]
    assert orders_to(play, JoinAgain) == ["a", "b"]
    decided = next(each.event for each in play.of(Publish) if each.event.kind == "restart_decided")
    assert decided.reason.startswith("rank 3 was killed by SIGKILL; restarting at once, restarts used 2 of 3")


def test_a_restart_that_was_decided_already_takes_no_second_unit():
    play = new_leader(Ledger(cycle=4, opened=5, restarts_used=2))
    play >> stands("a", 0, MemberState.FAILED, reason="rank 0 failed")
    play >> stands("b", 1, MemberState.JOINED, reason="rank 0 failed")
    assert isinstance(play.state.phase, Gathering)
    assert orders_to(play, JoinAgain) == ["a", "b"]
    play >> NodeFailed("a", 4, "rank 0 failed")
    play >> NodeJoined("a", 4)
    assert orders_to(play, StartCycle) == ["a", "b"]
    assert play.state.policy.used == 2


def test_an_order_that_did_not_reach_all_nodes_costs_nothing():
    play = new_leader(Ledger(cycle=5, opened=5, restarts_used=2))
    play >> stands("a", 0, cycle=5, restarts_used=2)
    play >> stands("b", 1, MemberState.JOINED, cycle=4)
    play.at(leader_takeover.TAKE_OVER_S) >> DeadlineReached()
    assert orders_to(play, JoinAgain) == ["a", "b"]
    assert (play.state.cycle, play.state.policy.used) == (5, 2)


def test_nodes_that_the_order_has_not_reached_begin_the_cycle_and_those_that_run_it_go_on():
    """Seeds 43385 and 99259 of the simulator. A lease was revoked when only some nodes had begun the cycle."""
    ledger = of_nodes(IN_CYCLE_4, "a", "b", "c")
    play = new_leader(ledger, leader="d")
    play >> stands("d", None, MemberState.JOINED, met_term=6)
    play >> stands("c", 1, MemberState.JOINED, cycle=3)
    play >> stands("b", None, MemberState.JOINED, met_term=6) << ()
    play >> stands("a", 0, store_host="10.0.0.1", store_port=20000)
    assert not orders_to(play, JoinAgain)
    parts = {each.node: each.order.assignment for each in play.of(Send) if isinstance(each.order, StartCycle)}
    assert parts == {"b": Assignment(4, 1, 3, 6, 2), "c": Assignment(4, 2, 3, 6, 4)}
    assert orders_to(play, UseStore) == ["b", "c"]
    assert (play.state.parts, play.state.policy.used) == (("a", "b", "c"), 1)
    for node in "abc":
        play >> NodeSucceeded(node, 4)
    assert orders_to(play, WindDown) == ["a", "b", "c", "d"]


def test_a_node_that_crashed_while_the_others_began_is_a_fault_and_those_that_wait_begin_all_the_same():
    ledger = of_nodes(IN_CYCLE_4, "a", "b", "c")
    play = new_leader(ledger)
    play >> stands("a", 0)
    play >> stands("b", 1, MemberState.JOINED, cycle=3)
    play.at(fence_times.LEFT_S) >> DeadlineReached()
    assert recorded(play) == [Ledger(cycle=4, opened=5, restarts_used=2)]
    assert orders_to(play, JoinAgain) == ["a", "b"]


def test_the_budget_is_the_highest_that_anybody_knows():
    play = new_leader(Ledger(cycle=3, opened=3, restarts_used=0))
    play >> stands("a", 0, restarts_used=3)
    play >> stands("b", 1, restarts_used=2)
    assert (play.state.cycle, play.state.policy.used) == (4, 3)


def test_the_store_is_told_again_to_nodes_that_may_have_missed_it():
    play = new_leader()
    play >> stands("a", 0, store_host="10.0.0.1", store_port=20000)
    play >> stands("b", 1)
    assert [each.order for each in play.of(Send)] == [UseStore(4, "10.0.0.1", 20000)]


def test_what_nodes_report_meanwhile_counts_afterwards():
    play = new_leader()
    play >> stands("b", 1)
    play >> NodeFailed("b", 4, "rank 2 failed") << ()
    play >> stands("a", 0)
    assert recorded(play) == [Ledger(cycle=4, opened=5, restarts_used=2)]


def test_a_fault_that_is_told_before_the_node_says_how_it_stands_is_the_same_one():
    """Seed 89380 of the simulator: the report had waited until the checkpoint's iteration was read."""
    play = new_leader()
    play >> stands("b", 1)
    play >> NodeFailed("a", 4, "node a ends its workers", training_iteration=100)
    play >> NodeJoined("a", 4) << ()
    play >> stands("a", 0, MemberState.JOINED, reason="node a ends its workers")
    assert recorded(play) == [Ledger(cycle=4, opened=5, restarts_used=2)]


def test_what_an_earlier_process_of_a_node_has_asked_for_does_not_hold_for_the_next_one():
    play = new_leader()
    play >> stands("b", 1, cordoned="a bad fan", excluded="its disk is broken")
    play >> NodeCordoned("b", "a bad fan") >> NodeExcluded("b", "its disk is broken")
    play >> LeaveAsked("b", "holdfast drain by kim", with_ranks=True) >> NodeLost("b", "node b is lost")
    play >> stands("b", 1) >> stands("a", 0)
    assert isinstance(play.state.phase, Running)
    member = play.state.members["b"]
    assert (member.cordoned, member.excluded, member.leaves) == ("", "", "")


def test_a_stop_that_a_lost_node_has_asked_for_stays():
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"))
    play >> stands("b", 1) >> LeaveAsked("b", "SIGTERM", 15, or_stop=True) >> NodeLost("b", "node b is lost")
    play >> stands("a", 0, MemberState.JOINED, reason="rank 0 was killed by SIGTERM")
    play.at(fence_times.LEFT_S) >> DeadlineReached()
    assert {each.order.signal for each in play.of(Send) if isinstance(each.order, WindDown)} == {15}


def test_a_request_to_leave_of_a_lost_node_stops_nothing_and_does_not_hold_for_its_next_process():
    """With --on-sigterm leave, by the node's signal; the node ended before the take-over did."""
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"))
    asked = LeaveAsked("b", "SIGTERM", 15, with_ranks=True, or_stop=True)
    play >> stands("b", 1) >> asked >> NodeLost("b", "node b is lost") >> stands("a", 0)
    play.at(fence_times.LEFT_S) >> DeadlineReached()
    assert isinstance(play.state.phase, Gathering)
    assert orders_to(play, WindDown) == []
    play >> stands("b", None, MemberState.JOINED, process="b2") >> NodeJoined("a", 4)
    assert orders_to(play, StartCycle) == ["a", "b"]


def test_all_nodes_of_the_cycle_are_gone():
    play = new_leader(leader="c")
    play >> JobOpened("c", RULES)
    play >> stands("d", None, MemberState.JOINED)
    play.at(leader_takeover.TAKE_OVER_S) >> DeadlineReached()
    assert recorded(play) == [Ledger(cycle=4, opened=5, restarts_used=2)]
    play >> NodeJoined("c", -1)
    assert orders_to(play, StartCycle) == ["c", "d"]


def test_a_node_that_was_given_up_comes_back_and_ends_what_it_still_runs():
    play = new_leader()
    play >> stands("a", 0)
    play >> stands("b", 1)
    play >> stands("c", 1, cycle=3)
    assert orders_to(play, JoinAgain) == ["c"]
    assert kinds(play) == ["node_returned"]


def test_the_first_leader_begins_the_job():
    play = new_leader(Ledger())
    play >> stands("b", None, MemberState.JOINED)
    play >> stands("a", None, MemberState.JOINED)
    assert not orders_to(play, StartCycle), "if the ledger was lost, others may train; they would end by then"
    assert coordinator.next_deadline_s(play.state) == fence_times.TAKE_OVER_S
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    assert orders_to(play, StartCycle) == ["a", "b"]
    assert recorded(play) == [Ledger(cycle=0, opened=0, restarts_used=0)]
    assert play.of(Record)[0].ledger.term == 7


def test_the_job_begins_at_once_if_nobody_can_train():
    play = new_leader(Ledger(), others_may_train=False)
    play >> stands("b", None, MemberState.JOINED) >> stands("a", None, MemberState.JOINED)
    assert orders_to(play, StartCycle) == ["a", "b"]


def test_two_newcomers_lead_before_those_who_train_and_begin_nothing_beside_them():
    """The ledger is lost: the nodes know the cycle and the budget, and training goes on."""
    play = new_leader(Ledger(), leader="x")
    play >> stands("x", None, MemberState.JOINED) >> stands("y", None, MemberState.JOINED)
    play >> NodeCordoned("y", "a bad fan")
    play.at(fence_times.TAKE_OVER_S - 1.0) >> stands("a", 0)
    assert kinds(play) == ["leader_changed"]
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached() << ()
    play >> stands("b", 1)
    assert isinstance(play.state.phase, Running)
    assert (play.state.cycle, play.state.parts, play.state.policy.used) == (4, ("a", "b"), 1)
    assert not play.of(Send)
    assert recorded(play) == [Ledger(cycle=4, opened=4, restarts_used=1)]
    assert play.state.members["y"].cordoned == "a bad fan"


def test_a_fault_before_the_first_cycle_shortens_no_wait_for_those_who_may_train():
    """Two groups of one job would train at once."""
    play = new_leader(Ledger(), leader="x")
    play >> stands("x", None, MemberState.JOINED) >> stands("y", None, MemberState.JOINED)
    play >> NodeFailed("y", -1, "its spawner was lost") >> NodeDown("y", -1)
    play.at(1.0) >> NodeJoined("x", -1)
    play >> NodeJoined("y", -1)
    assert not orders_to(play, StartCycle)
    assert coordinator.next_deadline_s(play.state) == fence_times.TAKE_OVER_S
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    assert orders_to(play, StartCycle) == ["x", "y"]


def test_a_leader_of_an_earlier_term_than_a_node_knows_lets_that_one_lead():
    """A backend without its data counts its terms from the first one again."""
    play = new_leader(Ledger(), leader="x")
    play >> stands("x", None, MemberState.JOINED, newest_term=7)
    assert not orders_to(play, Resign)
    play >> stands("a", 0, newest_term=50)
    assert orders_to(play, Resign) == ["x"]
    assert kinds(play) == ["leader_resigned"]
    play = new_leader(Ledger(4, term=50), leader="x")
    play >> stands("x", None, MemberState.JOINED, newest_term=7)
    assert orders_to(play, Resign) == ["x"]


def test_an_older_backup_is_written_anew_with_what_the_nodes_know():
    play = new_leader(of_nodes(Ledger(cycle=2, opened=2, restarts_used=0), "a", "c"))
    play >> stands("a", 0) >> stands("b", 1)
    assert recorded(play) == [Ledger(cycle=4, opened=4, restarts_used=1)]
    assert play.of(Record)[0].ledger.parts == ("a", "b")


def test_nobody_is_replaced_before_a_node_comes_that_the_leader_before_heard():
    """The old leader, cut off from the backend, may go on training with all of its nodes."""
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"), leader="x")
    play >> stands("x", None, MemberState.JOINED) >> stands("y", None, MemberState.JOINED)
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    assert kinds(play) == ["rendezvous_waits", "leader_resigned"]
    assert "(a, b): none of them has reached the new leader" in play.of(Publish)[0].event.reason
    play.at(100.0) >> DeadlineReached() << ()
    play >> stands("b", 1, left_ago_s=1.0) << ()
    play.at(100.0 + fence_times.LEFT_S - 1.1) >> DeadlineReached() << ()
    assert coordinator.next_deadline_s(play.state) == pytest.approx(100.0 + fence_times.LEFT_S - 1.0)
    play.at(100.0 + fence_times.LEFT_S - 1.0) >> DeadlineReached()
    assert orders_to(play, JoinAgain) == ["b", "x", "y"]
    play >> NodeJoined("b", 4)
    assert orders_to(play, StartCycle) == ["b", "x"]


def test_a_witness_that_left_a_dead_leader_long_ago_holds_up_nobody():
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"), leader="b")
    play >> stands("b", 1, left_ago_s=2.0) << ()
    assert coordinator.next_deadline_s(play.state) == fence_times.TAKE_OVER_S


def test_where_no_witness_ever_comes_the_newcomers_end_and_the_job_does_not():
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"), leader="x")
    play >> stands("x", None, MemberState.JOINED)
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    give_up_s = fence_times.TAKE_OVER_S + RULES.rendezvous.join_timeout_s
    assert coordinator.next_deadline_s(play.state) == give_up_s
    play.at(give_up_s) >> DeadlineReached()
    assert orders_to(play, Conclude) == ["x"]
    assert "start one of them again, or another --rdzv-id" in play.of(Send)[0].order.verdict.reason
    assert not recorded(play)
    play >> VerdictTaken("x")
    assert job_termination.is_over(play.state)


def test_the_first_order_did_not_reach_anybody():
    """The nodes are in no cycle: nothing has failed, and the job uses no restart."""
    play = new_leader(of_nodes(Ledger(0, 0, 0), "a", "b"), leader="b")
    for node in "ba":
        play >> stands(node, None, MemberState.JOINED, met_term=6)
    assert orders_to(play, StartCycle) == ["a", "b"]
    assert (play.state.cycle, play.state.policy.used) == (0, 0)


def test_a_node_that_crashed_and_came_back_takes_a_unit_though_its_leader_was_lost_too():
    """Seed 269 of the simulator. A leader's node that crashes again and again would never use up the budget."""
    play = new_leader(of_nodes(Ledger(0, 0, 0), "a", "b"), leader="b")
    play >> stands("b", 1, cycle=0, left_ago_s=1.0, restarts_used=0)
    play >> stands("a", None, MemberState.JOINED, process="a2", met_term=6)
    play.at(fence_times.LEFT_S) >> DeadlineReached()
    assert (play.state.cycle, play.state.policy.used) == (0, 1)
    assert orders_to(play, JoinAgain) == ["a", "b"]


def test_a_node_that_is_lost_keeps_its_name_and_may_come_back_under_it():
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"), leader="b")
    play >> stands("b", 1, left_ago_s=3.0)
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    states = {each.name: each.state for each in rosters.roster(play.state).nodes}
    assert states == {"a": "lost", "b": "stopping"}
    lost = next(each.event.reason for each in play.of(Publish) if each.event.kind == "restart_decided")
    assert lost.startswith(
        "node a of group rank 0 is lost: it has not reported its state to the new leader, "
        "and nothing was heard of the previous one for 8.0 s or more; restarting"
    )
    assert [each.node for each in play.of(announcements.NodeLost)] == ["a"]
    play >> NodeJoined("b", 4)
    play >> stands("a", 0, MemberState.JOINED)
    assert orders_to(play, StartCycle) == ["a", "b"]
    assert play.state.policy.used == 2


def test_a_part_that_nobody_knows_the_name_of_is_not_listed():
    play = new_leader()
    play >> stands("b", 1)
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    assert [each.name for each in rosters.roster(play.state).nodes] == ["b"]


def test_a_new_process_of_a_node_that_took_part_does_not_stand_for_its_old_one():
    ledger = of_nodes(IN_CYCLE_4, "a", "b")
    play = new_leader(ledger, leader="a")
    play >> stands("a", None, MemberState.JOINED, process="a2") >> stands("c", None, MemberState.JOINED)
    play.at(fence_times.LEFT_S) >> DeadlineReached()
    play >> NodeJoined("a", -1)
    assert play.state.policy.used == 2
    assert play.state.parts == ("a", "c")


def test_a_lost_node_whose_place_a_spare_has_does_not_take_part():
    ledger = of_nodes(IN_CYCLE_4, "a", "c")
    play = new_leader(ledger)
    play >> stands("a", 0) >> stands("b", 1)
    assert not isinstance(play.state.phase, Running)
    play >> stands("c", 1)
    assert isinstance(play.state.phase, Running)
    assert play.state.parts == ("a", "c")
    assert orders_to(play, JoinAgain) == ["b"]
    play >> NodeFailed("b", 4, "rank 2 was killed by SIGTERM")
    assert not recorded(play), "its faults use no restart"
    play >> NodeSucceeded("a", 4)
    play >> NodeSucceeded("c", 4)
    assert orders_to(play, WindDown) == ["a", "b", "c"], "the end does not wait for b"


def test_a_lost_node_whose_place_a_spare_has_is_no_healthy_one():
    """Else a fault that too few nodes are left for would be tolerated, and the job would wait indefinitely."""
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "c"))
    rules = msgspec.structs.replace(RULES.restart, policy=RestartPolicyName.MIN_HEALTHY)
    for node, group_rank in (("b", 1), ("c", 1), ("a", 0)):
        each = stands(node, group_rank)
        play >> msgspec.structs.replace(each, rules=msgspec.structs.replace(each.rules, restart=rules))
    play >> NodeFailed("c", 4, "rank 3 died")
    assert "fault_tolerated" not in kinds(play)
    assert orders_to(play, JoinAgain) == ["a", "b", "c"]


def test_what_is_recorded_names_the_nodes_of_the_cycle_and_those_that_are_heard():
    play = new_leader(Ledger())
    play >> stands("b", None, MemberState.JOINED) >> stands("a", None, MemberState.JOINED)
    play.at(fence_times.TAKE_OVER_S) >> DeadlineReached()
    (ledger,) = [each.ledger for each in play.of(Record)]
    assert (ledger.parts, set(ledger.witnesses)) == (("a", "b"), {"a", "b"})
    play >> JobOpened("c", RULES)
    assert [set(each.ledger.witnesses) for each in play.of(Record)] == [{"a", "b", "c"}]
    play >> NodeLost("c", "it is gone")
    assert [set(each.ledger.witnesses) for each in play.of(Record)] == [{"a", "b"}]


@pytest.mark.parametrize("state", list(MemberState))
def test_every_state_of_every_node_leads_to_a_running_job_or_its_end(state: MemberState):
    """The leader never waits for a report that does not come."""
    play = new_leader()
    play >> stands("a", 0)
    play >> stands("b", 1, state, reason="a reason")
    play.at(leader_takeover.TAKE_OVER_S) >> DeadlineReached()
    assert coordinator.next_deadline_s(play.state) is not None or isinstance(play.state.phase, Running)


@pytest.mark.parametrize("why", [{"cordoned": "a bad fan"}, {"excluded": "its disk is broken"}])
def test_a_node_that_an_earlier_leader_kept_out_is_kept_out(why: dict[str, str]) -> None:
    """Neither the ledger nor the next leader knows: the node says so itself."""
    play = new_leader()
    play >> stands("a", 0, MemberState.RUNNING) >> stands("c", None, MemberState.JOINED)
    play >> msgspec.structs.replace(stands("b", 1), **why)
    play >> NodeFailed("b", 4, "rank 3 failed") >> NodeJoined("b", 4) >> NodeJoined("a", 4)
    assert play.state.parts == ("a", "c")


@pytest.mark.parametrize("why", [{"cordoned": "a bad fan"}, {"excluded": "its disk is broken"}])
def test_a_node_that_waits_for_its_order_and_is_kept_out_takes_part_in_that_cycle_only(why: dict[str, str]) -> None:
    play = new_leader(of_nodes(IN_CYCLE_4, "a", "b"))
    play >> stands("c", None, MemberState.JOINED)
    play >> msgspec.structs.replace(stands("b", 1, MemberState.JOINED, cycle=3), **why) >> stands("a", 0)
    assert orders_to(play, StartCycle) == ["b"]
    play >> NodeFailed("a", 4, "rank 1 failed") >> NodeJoined("b", 4) >> NodeJoined("a", 4)
    assert play.state.parts == ("a", "c")


@pytest.mark.parametrize("why", [{"cordoned": "a bad fan"}, {"excluded": "its disk is broken"}])
@pytest.mark.parametrize("state", [MemberState.RUNNING, MemberState.JOINED])
def test_a_node_that_was_lost_and_comes_back_is_kept_out_as_before(state: MemberState, why: dict[str, str]) -> None:
    play = new_leader()
    play >> stands("a", 0) >> stands("b", 1) >> stands("c", None, MemberState.JOINED)
    play >> NodeLost("b", "node b is lost") >> NodeLost("c", "node c is lost")
    play >> msgspec.structs.replace(stands("b", 1, state), **why) >> NodeJoined("a", 4) >> NodeJoined("b", 4)
    assert isinstance(play.state.phase, Gathering)
    play >> stands("c", None, MemberState.JOINED)
    assert play.state.parts == ("a", "c")
