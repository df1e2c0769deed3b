"""The first sign of a restarted script is told once, with how long after the fault it came."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

from supervisor.core.facts import HangLimits, JobEvent, Progress
from supervisor.core.node import script_seen
from supervisor.core.node.node_messages import ClientJoined, Publish, RankPrinted
from supervisor.core.worker_messages import PrepareWorkers, StopWorkers
from tests.core.one_node import JOB
from tests.core.playbook import Playbook

JOINED = ClientJoined(JOB, 2, 1, HangLimits(), Progress(0.0, 0.0))


def playing(*, first_rank: int = 0, lost_at_s: float | None = 10.0) -> Playbook[script_seen.State]:
    play = Playbook(
        script_seen.step, script_seen.initial_state(), job_id=JOB, cycle=2, first_rank=first_rank, lost_at_s=lost_at_s
    )
    play >> PrepareWorkers(2)
    return play


def told(text: str, rank: int, took_s: str) -> Publish:
    return Publish(JOB, JobEvent("script_seen", text, 2, rank, (("took_s", took_s),)))


def test_the_first_of_all_signs_is_told() -> None:
    play = playing()
    text = "first sign of the script after 2.41 s: output of rank 3, cycle 2"
    assert script_seen.shown(play.state) == "no sign of it yet after the restart"
    play.at(12.5) >> RankPrinted(JOB, 2, 3, 12.41) << told(text, 3, "2.410")
    play >> JOINED << ()
    assert script_seen.shown(play.state) == text
    play = playing()
    play.at(33.0) >> JOINED << told("first sign of the script after 23 s: the client of rank 1, cycle 2", 1, "23.000")
    assert script_seen.next_deadline_s(play.state) is None


def test_another_node_keeps_the_sign_of_its_ranks_for_status_and_publishes_nothing() -> None:
    play = playing(first_rank=24)
    assert script_seen.shown(play.state) == script_seen.NO_SIGN
    play.at(12.5) >> RankPrinted(JOB, 2, 7, 12.41) << ()
    assert script_seen.shown(play.state) == "first sign of the script after 2.41 s: output of rank 31, cycle 2"


def test_nothing_is_told_at_the_start_by_other_nodes_and_once_the_workers_are_to_end() -> None:
    play = playing(lost_at_s=None)
    play >> JOINED << ()
    assert script_seen.shown(play.state) == ""
    playing(first_rank=4) >> JOINED << ()
    play = playing()
    play >> StopWorkers(15, 1.0)
    play >> JOINED << ()
