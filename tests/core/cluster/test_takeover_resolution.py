"""Once a new leader knows what the nodes do: how does the job go on, or end, and by whose settings?"""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import msgspec
import pytest

from supervisor.core import fence_times
from supervisor.core.cluster import coordinator, leader_takeover
from supervisor.core.cluster.cluster_messages import (
    DeadlineReached,
    LeaveAsked,
    MemberState,
    NodeFailed,
    NodeJoined,
    NodeStands,
    NodeStopped,
    Record,
    Send,
    StopAsked,
)
from supervisor.core.cluster.coordinator_states import Gathering, Running, WindingDown
from supervisor.core.facts import JobState, Verdict
from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import Conclude, Resign, StartCycle, WindDown
from tests.core.new_leader import IN_CYCLE_4, kinds, new_leader, of_nodes, orders_to, stands
from tests.core.playbook import Playbook

OF_A_B = of_nodes(IN_CYCLE_4, "a", "b")
IDLE = [MemberState.OPENED, MemberState.JOINED, MemberState.DOWN]


def verdicts(play: Playbook[coordinator.State]) -> set[Verdict]:
    return {each.order.verdict for each in play.of(Send) if isinstance(each.order, Conclude)}


# --- a stop that no leader heard -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize("first", [True, False], ids=["before the others", "after them"])
def test_a_stop_asked_for_on_a_node_without_ranks_ends_the_job(state: MemberState, first: bool) -> None:
    """Nobody led when it was typed, and the next leader came after requests are no longer repeated to one."""
    asked = stands("c", None, state, met_term=6, stop_reason="by kim", stop_is_final=True)
    nodes = [stands("a", 0), stands("b", 1)]
    play = new_leader(OF_A_B)
    for each in [asked, *nodes] if first else [*nodes, asked]:
        play >> each
    assert orders_to(play, WindDown) == ["a", "b", "c"]
    assert orders_to(play, StartCycle) == []
    play >> NodeStopped("a", all_succeeded=False) >> NodeStopped("b", all_succeeded=False)
    play >> NodeStopped("c", all_succeeded=False)
    assert verdicts(play) == {Verdict(JobState.STOPPED, 93, "by kim")}


def test_a_stop_asked_for_on_a_node_that_comes_before_the_first_cycle_ends_the_job() -> None:
    play = new_leader(Ledger(), leader="a", others_may_train=False)
    play >> stands("a", None, MemberState.JOINED)
    play >> stands("c", None, MemberState.JOINED, stop_reason="by kim")
    assert orders_to(play, WindDown) == ["a", "c"]
    assert orders_to(play, StartCycle) == []


def test_a_node_that_has_stopped_alone_does_not_stop_the_others() -> None:
    """It had never met a leader: 3 s after the stop, the job ended there."""
    stopped = Verdict(JobState.STOPPED, 93, "by kim; no leader of the job has answered")
    alone = stands("c", None, MemberState.INFORMED, stop_reason="by kim", verdict=stopped)
    play = new_leader(OF_A_B)
    play >> alone >> stands("a", 0) >> stands("b", 1)
    assert isinstance(play.state.phase, Running)
    play = new_leader(OF_A_B)
    play >> stands("a", 0) >> stands("b", 1) >> alone
    assert isinstance(play.state.phase, Running)


def test_a_second_signal_before_the_take_over_ends_kills_the_ranks_of_all_nodes() -> None:
    """Its terminal has said so: "again: ranks 0 to 1 are killed"."""
    first = StopAsked("got SIGINT on node a", 2)
    again = StopAsked("got SIGINT on node a", 2, at_once=True)
    play = new_leader(OF_A_B)
    play >> stands("a", 0) >> first
    play.at(3.0) >> again
    play.at(4.0) >> stands("b", 1)
    assert [each.order.at_once for each in play.of(Send) if each.node == "b"] == [False, True]


def test_the_first_signals_of_many_nodes_leave_room_for_a_second_one_during_the_take_over() -> None:
    play = new_leader(OF_A_B)
    play >> stands("a", 0)
    for number in range(leader_takeover.WAITING_MAX + 100):
        play >> StopAsked(f"got SIGTERM on node {number}", 15)
    play >> StopAsked("got SIGTERM on node 0", 15, at_once=True) >> stands("b", 1)
    assert [each.order.at_once for each in play.of(Send) if each.node == "b"] == [False, True]


def test_a_kill_that_is_the_first_news_of_a_stop_gives_no_rank_time() -> None:
    play = new_leader(OF_A_B)
    play >> stands("a", 0) >> StopAsked("by kim", 9, at_once=True) >> stands("b", 1)
    assert [each.order for each in play.of(Send)] == [WindDown("by kim", 9, at_once=True)] * 2


@pytest.mark.parametrize(
    "ends", [{"stop_signal": 15, "stop_reason": "x"}, {"verdict": Verdict(JobState.FAILED, 1, "x")}], ids=str
)
def test_a_kill_stays_one_under_the_next_leader(ends: dict[str, object]) -> None:
    play = new_leader(msgspec.structs.replace(OF_A_B, stop_at_once=True, **ends))  # pyright: ignore
    play >> stands("a", 0, MemberState.FAILED) >> stands("b", 1, MemberState.FAILED)
    assert [each.order.at_once for each in play.of(Send)] == [True, True]
    (ledger,) = [each.ledger for each in play.of(Record)]
    assert ledger.stop_at_once, "and under the one after it"


def test_a_kill_that_the_last_leader_did_not_hear_is_one_under_the_next() -> None:
    for ledger in (OF_A_B, msgspec.structs.replace(OF_A_B, stop_signal=15, stop_reason="SIGTERM")):
        play = new_leader(ledger) >> stands("a", 0, MemberState.FAILED, stop_reason="SIGTERM", stop_signal=15)
        play >> stands("b", 1, MemberState.FAILED, stop_reason="SIGTERM", stop_signal=15, stop_at_once=True)
        assert [each.order.at_once for each in play.of(Send) if each.node == "a"][-1:] == [True]


def test_a_command_that_was_typed_during_a_stop_while_nobody_led_shortens_the_time_of_all() -> None:
    play = new_leader(msgspec.structs.replace(OF_A_B, stop_signal=15, stop_reason="SIGTERM"))
    play >> stands("a", 0, MemberState.FAILED, stop_reason="SIGTERM", stop_signal=15)
    play >> stands("b", 1, MemberState.FAILED, stop_reason="by kim", stop_is_final=True)
    assert [each.order for each in play.of(Send) if each.node == "a"] == [WindDown("SIGTERM", 15), WindDown("by kim")]


def test_the_time_that_ranks_have_to_save_is_that_of_the_stop_under_the_next_leader_too() -> None:
    """A stop by the API that gives ten minutes for a checkpoint."""
    play = new_leader(msgspec.structs.replace(OF_A_B, stop_signal=0, stop_reason="by kim", stop_grace_s=600.0))
    play >> stands("a", 0, MemberState.FAILED) >> stands("b", 1, MemberState.FAILED)
    assert [each.order for each in play.of(Send)] == [WindDown("by kim", grace_s=600.0)] * 2
    (ledger,) = [each.ledger for each in play.of(Record)]
    assert (ledger.stop_signal, ledger.stop_grace_s) == (0, 600.0), "and under the one after it"
    play = new_leader(OF_A_B)
    play >> stands("a", 0, MemberState.FAILED, stop_reason="by kim", stop_grace_s=600.0) >> stands("b", 1)
    assert [each.order for each in play.of(Send)] == [WindDown("by kim", grace_s=600.0)] * 2


def test_a_stop_while_the_leader_waits_for_the_nodes_that_had_the_ranks_ends_the_job() -> None:
    """They have lost power together, and a spare leads. It begins nothing without them, and needs none for an end."""
    play = new_leader(OF_A_B, leader="c")
    play >> stands("c", None, MemberState.JOINED)
    play >> StopAsked("by kim", 0, is_final=True)
    assert orders_to(play, WindDown) == []
    assert coordinator.next_deadline_s(play.state) == leader_takeover.TAKE_OVER_S
    play.at(leader_takeover.TAKE_OVER_S) >> DeadlineReached()
    (ledger,) = [each.ledger for each in play.of(Record)]
    assert (ledger.stop_signal, ledger.stop_reason, ledger.stop_is_final) == (0, "by kim", True)
    assert [each.order for each in play.of(Send)] == [WindDown("by kim")]
    assert kinds(play) == [], "no earlier run has ended like that"
    play >> NodeStopped("c", all_succeeded=False)
    assert verdicts(play) == {Verdict(JobState.STOPPED, 93, "by kim")}


@pytest.mark.parametrize("ledger", [OF_A_B, msgspec.structs.replace(OF_A_B, opened=5), Ledger()])
def test_a_stop_after_the_window_ends_the_job_at_once_and_begins_nothing(ledger: Ledger) -> None:
    play = new_leader(ledger, leader="c")
    play >> stands("c", 0 if ledger == Ledger() else None, MemberState.JOINED, left_ago_s=900.0)
    play >> stands("d", None, MemberState.JOINED)
    play.at(leader_takeover.TAKE_OVER_S) >> DeadlineReached()
    assert orders_to(play, StartCycle) == []
    play.at(60.0) >> StopAsked("by kim", 0, is_final=True)
    assert orders_to(play, WindDown) == ["c", "d"]
    assert orders_to(play, StartCycle) == []


def test_a_signal_to_a_spare_is_no_stop_so_its_leader_goes_on_waiting() -> None:
    """The spare leaves by itself if nobody answers. The nodes that had the ranks may still train."""
    play = new_leader(OF_A_B, leader="c")
    play >> stands("c", None, MemberState.JOINED) >> stands("d", None, MemberState.JOINED)
    play >> LeaveAsked("d", "got SIGTERM", 15, or_stop=True)
    play.at(leader_takeover.TAKE_OVER_S) >> DeadlineReached()
    assert orders_to(play, WindDown) == []
    assert orders_to(play, StartCycle) == []


def test_a_stop_after_all_ranks_have_succeeded_does_not_change_how_the_job_ends() -> None:
    play = new_leader(OF_A_B)
    play >> stands("a", 0, MemberState.SUCCEEDED) >> StopAsked("by kim", 0) >> stands("b", 1, MemberState.SUCCEEDED)
    play >> NodeStopped("a", all_succeeded=True) >> NodeStopped("b", all_succeeded=True)
    assert {each.state for each in verdicts(play)} == {JobState.SUCCEEDED}


# --- settings ------------------------------------------------------------------------------------------------------


def newcomer(node: str = "c") -> NodeStands:
    """Returns a node that was started with other settings and has met no leader yet."""
    new = stands(node, None, MemberState.JOINED)
    return msgspec.structs.replace(new, rules=msgspec.structs.replace(new.rules, local_world_size=4))


REFUSAL = "node c has --nproc-per-node 4, and the other nodes of the job have 2; start it with the same"


def test_a_node_with_other_settings_that_comes_during_the_take_over_is_refused() -> None:
    play = new_leader(OF_A_B)
    play >> newcomer() >> NodeJoined("c", -1) >> stands("a", 0) >> stands("b", 1)
    assert isinstance(play.state.phase, Running)
    assert orders_to(play, Conclude) == ["c"]
    assert verdicts(play) == {Verdict(JobState.FAILED, 1, REFUSAL)}
    assert kinds(play) == ["node_refused", "leader_changed"]
    play >> NodeFailed("b", 4, "rank 2 died") >> NodeJoined("b", 4) >> NodeJoined("a", 4)
    assert orders_to(play, StartCycle) == ["a", "b"]


def test_a_node_with_other_settings_that_is_elected_follows_those_of_the_job_and_gives_up_the_lead() -> None:
    play = new_leader(OF_A_B, leader="c")
    play >> newcomer() >> stands("a", 0) >> stands("b", 1)
    assert isinstance(play.state.phase, Running)
    assert play.state.rules.local_world_size == 2
    assert orders_to(play, Resign) == ["c"]
    assert REFUSAL in next(each.order.reason for each in play.of(Send))
    assert play.of(Record)[-1].ledger.resigned == ("c",)
    play >> NodeFailed("b", 4, "rank 2 died") >> NodeJoined("b", 4) >> NodeJoined("a", 4)
    assert orders_to(play, StartCycle) == ["a", "b"], "it takes no part as long as it leads, either"


def test_the_next_leader_ends_the_part_of_the_one_that_has_given_up_the_lead() -> None:
    play = new_leader(OF_A_B)
    play >> stands("a", 0) >> stands("b", 1)
    play >> msgspec.structs.replace(newcomer(), met_term=7)
    assert verdicts(play) == {Verdict(JobState.FAILED, 1, REFUSAL)}
    play = new_leader(OF_A_B)
    play >> msgspec.structs.replace(newcomer(), met_term=7) >> stands("a", 0) >> stands("b", 1)
    assert verdicts(play) == {Verdict(JobState.FAILED, 1, REFUSAL)}


def test_a_new_node_with_the_rank_of_another_is_refused_and_not_the_other() -> None:
    def ranked(report: NodeStands) -> NodeStands:
        facts = msgspec.structs.replace(report.rules.facts, infrastructure_rank=1, rank_source="SLURM_PROCID")
        return msgspec.structs.replace(report, rules=msgspec.structs.replace(report.rules, facts=facts))

    new = ranked(stands("c", None, MemberState.JOINED))
    for known in (ranked(stands("b", 1)), stands("b", 1)):
        spare = ranked(stands("d", None, MemberState.JOINED, met_term=6))
        play = new_leader(OF_A_B)
        for each in (new, spare) if known == stands("b", 1) else (new,):
            play >> each
        play >> stands("a", 0) >> known
        assert orders_to(play, Conclude) == ["c"]
        assert isinstance(play.state.phase, Running)


def test_where_no_node_has_ranks_the_settings_of_the_leader_count() -> None:
    play = new_leader(OF_A_B, leader="d")
    play >> newcomer() >> stands("d", None, MemberState.JOINED, met_term=6)
    play >> stands("e", None, MemberState.JOINED, met_term=6, left_ago_s=fence_times.LEFT_S)
    play >> stands("b", None, MemberState.JOINED, process="b2", left_ago_s=fence_times.LEFT_S)
    play.at(leader_takeover.TAKE_OVER_S) >> DeadlineReached()
    assert orders_to(play, Conclude) == ["c"]
    assert isinstance(play.state.phase, Gathering | Running)


def test_a_node_with_other_settings_ends_with_a_job_that_ends() -> None:
    play = new_leader(msgspec.structs.replace(OF_A_B, stop_signal=15, stop_reason="SIGTERM"))
    play >> newcomer() >> stands("a", 0) >> stands("b", 1)
    assert orders_to(play, WindDown) == ["a", "b", "c"]


def excluded_under_a_new_leader() -> Playbook[coordinator.State]:
    """Returns a job whose last leader had a spare, c, and was opening the next round."""
    play = new_leader(msgspec.structs.replace(of_nodes(IN_CYCLE_4, "a", "b"), opened=5), leader="b")
    play >> stands("a", 0, MemberState.JOINED, excluded="its disk is broken", reason="rank 0 raised")
    play >> stands("b", 1, MemberState.JOINED)
    assert orders_to(play, WindDown) == []
    return play


def test_a_new_leader_waits_for_the_spares_of_the_last_one_before_it_has_too_few_nodes() -> None:
    play = excluded_under_a_new_leader() >> stands("c", None, MemberState.JOINED)
    assert orders_to(play, StartCycle) == ["b", "c"]
    play = excluded_under_a_new_leader()
    due_s = play.state.others_until_s
    assert coordinator.next_deadline_s(play.state) == due_s
    play.at(due_s - 0.1) >> DeadlineReached() << ()
    play.at(due_s) >> DeadlineReached()
    assert orders_to(play, WindDown) == ["b"]
    assert isinstance(play.state.phase, WindingDown)
    assert play.state.phase.outcome.reason == "rank 0 raised; its disk is broken; 1 node is left where 2 are needed"
