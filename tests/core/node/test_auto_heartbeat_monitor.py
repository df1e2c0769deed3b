"""Whose main thread is silent is found once, and by a reading that was asked for."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

from supervisor.core.facts import Progress, WorkerExit
from supervisor.core.node import auto_heartbeat_monitor
from supervisor.core.node.auto_heartbeat_monitor import DeclareHang, ReadPage
from supervisor.core.node.node_messages import (
    DeadlineReached,
    ProgressRead,
    SupervisorReturned,
    WorkerExited,
    WorkerSpawned,
)
from supervisor.core.worker_messages import StopWorkers
from tests.core.one_node import JOB
from tests.core.playbook import Playbook


def playing(in_call: tuple[int, ...] = ()) -> Playbook[auto_heartbeat_monitor.State]:
    play = Playbook(auto_heartbeat_monitor.step, auto_heartbeat_monitor.initial_state(), limit_s=5.0, in_call=in_call)
    play.at(10.0) >> WorkerSpawned(JOB, 0, 1, 812)
    return play


def read(executed_at_s: float | None, *, read_at_s: float | None = None) -> ProgressRead:
    return ProgressRead(JOB, 0, 1, Progress(0.0, 0.0, executed_at_s=executed_at_s, read_at_s=read_at_s))


def due_s(play: Playbook[auto_heartbeat_monitor.State]) -> float | None:
    return auto_heartbeat_monitor.next_deadline_s(play.state)


def test_a_silence_counts_from_the_last_bytecode() -> None:
    play = playing()
    assert due_s(play) == 15.0
    play.at(14.9) >> DeadlineReached() << ()
    play.at(15.0) >> DeadlineReached() << ReadPage(1)
    play >> DeadlineReached() << ()
    play >> read(13.0) << ()
    assert due_s(play) == 18.0
    play.at(18.0) >> DeadlineReached() << ReadPage(1)
    play.at(18.1) >> read(13.0) << DeclareHang(1, "executed no Python code for 5.1 s (limit 5.0 s)")
    assert due_s(play) is None
    play.at(30.0) >> read(13.0) << ()


def test_a_reading_that_nobody_has_asked_for_is_no_reason() -> None:
    play = playing()
    play.at(14.0) >> read(1.0) << ()
    assert due_s(play) == 15.0


def test_a_reading_from_before_the_limit_is_repeated() -> None:
    play = playing()
    play.at(15.0) >> DeadlineReached() << ReadPage(1)
    play.at(19.0) >> read(13.0, read_at_s=17.0) << ()
    assert due_s(play) == 19.05


def test_who_has_no_page_or_is_in_a_wrapped_call_is_not_judged() -> None:
    play = playing()
    play.at(15.0) >> DeadlineReached() << ReadPage(1)
    play >> read(None) << ()
    assert due_s(play) == 20.0
    play = playing(in_call=(1,))
    play.at(15.0) >> DeadlineReached() << ReadPage(1)
    play >> read(1.0) << ()
    assert due_s(play) == 20.0


def test_who_has_ended_or_is_being_ended_is_not_judged() -> None:
    play = playing()
    play >> WorkerExited(JOB, 0, WorkerExit(1, 1, 812, 0, None, 11.0))
    assert due_s(play) is None
    play = playing()
    play >> StopWorkers(15, 1.0)
    assert due_s(play) is None


def test_a_supervisor_that_returns_asks_again() -> None:
    play = playing()
    play.at(15.0) >> DeadlineReached() << ReadPage(1)
    play.at(40.0) >> SupervisorReturned(JOB) << ()
    play >> DeadlineReached() << ReadPage(1)
    play >> read(39.0) << ()
    assert due_s(play) == 44.0
