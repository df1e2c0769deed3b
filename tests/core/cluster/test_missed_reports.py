"""A new leader makes up for the reports that it has missed of a node, from the state that this node reports."""

from __future__ import annotations

import pytest

from supervisor.core.cluster import missed_reports
from supervisor.core.cluster.cluster_messages import (
    JobOpened,
    LeaveAsked,
    MemberState,
    NodeCordoned,
    NodeExcluded,
    NodeFailed,
    NodeJoined,
    NodeLost,
    NodeStopped,
    StopAsked,
    VerdictTaken,
)
from tests.core.new_leader import stands

STOPPED = stands("a", 0, MemberState.STOPPED, all_succeeded=True)
ASKED = stands("a", 0, MemberState.STOPPED, stop_reason="stopped by kim")


def test_a_node_that_waits_has_opened_the_job_and_joined() -> None:
    waits = stands("a", 0, MemberState.JOINED)
    assert missed_reports.of_node(waits) == (JobOpened("a", waits.rules), NodeJoined("a", 4))


def test_a_stop_comes_before_the_report_that_the_node_has_stopped() -> None:
    asked = StopAsked("stopped by kim", 0)
    stopped = NodeStopped("a", all_succeeded=False)
    assert missed_reports.of_node(ASKED) == (JobOpened("a", ASKED.rules), asked, stopped)
    assert missed_reports.stop_of(ASKED) == (asked,)
    assert missed_reports.stop_of(STOPPED) == ()


@pytest.mark.parametrize("state", [MemberState.OPENED, MemberState.JOINED, MemberState.DOWN])
def test_a_stop_that_no_leader_heard_comes_before_the_report_that_the_node_waits(state: MemberState) -> None:
    waits = stands("c", None, state, stop_reason="by kim", stop_is_final=True, stop_grace_s=600.0)
    asked = StopAsked("by kim", 0, grace_s=600.0, is_final=True)
    assert missed_reports.of_newcomer(waits)[:2] == (JobOpened("c", waits.rules), asked)


def test_a_kill_that_no_leader_heard_stays_one() -> None:
    killed = stands("b", 1, MemberState.FAILED, stop_reason="by kim", stop_signal=9, stop_at_once=True)
    assert missed_reports.stop_of(killed) == (StopAsked("by kim", 9, at_once=True),)


def test_the_stop_of_a_node_without_a_part_that_has_obeyed_it_alone_concerns_no_other() -> None:
    alone = stands("c", None, MemberState.INFORMED, stop_reason="by kim")
    assert missed_reports.of_newcomer(alone) == (JobOpened("c", alone.rules), VerdictTaken("c"))


def test_of_a_cycle_the_faults_and_the_absent_nodes_are_made_up_for() -> None:
    failed = stands("b", 1, MemberState.FAILED, reason="rank 2 failed")
    assert missed_reports.of_cycle({1: failed}, {0: "a"}, 4, 7.25) == (
        NodeFailed("b", 4, "rank 2 failed"),
        NodeLost(
            "a",
            "node a of group rank 0 is lost: it has not reported its state to the new leader, "
            "and nothing was heard of the previous one for 7.2 s or more",
        ),
    )
    (asked,) = missed_reports.of_cycle(
        {1: stands("b", 1, MemberState.FAILED, reason="rank 2 failed", restart_allowed=False)}, {}, 4, 0.0
    )
    assert asked == NodeFailed("b", 4, "rank 2 failed", restart_allowed=False, exit_code=93)
    gave_up = missed_reports.of_cycle({0: STOPPED}, {}, 4, 0.0)
    assert gave_up == (VerdictTaken("a"), NodeStopped("a", all_succeeded=True))


def test_who_keeps_a_node_out_comes_before_the_report_that_it_has_joined() -> None:
    kept = stands("a", 0, MemberState.JOINED, cordoned="a bad fan", excluded="its disk is broken")
    assert missed_reports.of_node(kept)[1:] == (
        NodeExcluded("a", "its disk is broken"),
        NodeCordoned("a", "a bad fan"),
        NodeJoined("a", 4),
    )


def test_what_was_asked_for_on_a_node_whose_workers_are_to_be_stopped() -> None:
    asked = LeaveAsked("a", "drained by kim", with_ranks=True)
    leaves = stands("a", 0, MemberState.RUNNING, leave=asked, stop_reason="stopped by kim")
    assert missed_reports.asked_of(leaves) == (StopAsked("stopped by kim", 0), asked)
