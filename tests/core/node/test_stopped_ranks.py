"""A stopped rank is reported at once and hangs after its limit, and nothing is held against one that goes on."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import signal as signals

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.facts import HangLimits, Progress
from supervisor.core.node import node_messages, stopped_ranks
from supervisor.core.node.node_messages import DeadlineReached, Publish
from supervisor.core.node.stopped_ranks import DeclareHang, RankContinued, RankStopped, WorkerEnded, WorkersEnding
from supervisor.core.wrapped_calls.call_messages import CallEnter, CallSettings, Stage
from tests.core.one_node import JOB, OneNode, rules, running
from tests.core.playbook import Playbook

STOP = int(signals.SIGSTOP)
TERM, KILL = int(signals.SIGTERM), int(signals.SIGKILL)


def playing(*, in_call: tuple[int, ...] = ()) -> Playbook[stopped_ranks.State]:
    return Playbook(stopped_ranks.step, stopped_ranks.initial_state(), job_id=JOB, cycle=0, in_call=in_call)


def stopped(at_s: float, *, limit_s: float | None = 5.0, local_rank: int = 1) -> RankStopped:
    return RankStopped(local_rank, 10 + local_rank, 812, STOP, at_s, limit_s)


def test_a_stop_is_reported_at_once_and_is_a_hang_after_the_limit() -> None:
    play = playing()
    play.at(1.0) >> stopped(1.0)
    (said,) = play.of(Publish)
    continues = "`kill -CONT 812` continues it"
    assert (
        said.event.reason == f"rank 11 (pid 812) is stopped (SIGSTOP); {continues}, and after 5 s it counts as a hang"
    )
    assert stopped_ranks.next_deadline_s(play.state) == 6.0
    play.at(5.9) >> DeadlineReached() << ()
    play.at(6.0) >> DeadlineReached() << DeclareHang(1, "is stopped (SIGSTOP) for 5.0 s")
    assert stopped_ranks.next_deadline_s(play.state) is None
    play.at(7.0) >> DeadlineReached() << ()  # once


def test_without_a_limit_it_is_only_reported() -> None:
    play = playing()
    play.at(1.0) >> stopped(1.0, limit_s=None)
    assert play.of(Publish)[0].event.reason.endswith("`kill -CONT 812` continues it")
    assert stopped_ranks.next_deadline_s(play.state) is None


def test_a_rank_that_goes_on_is_reported_and_not_judged() -> None:
    play = playing()
    play.at(1.0) >> stopped(1.0)
    play.at(4.2) >> RankContinued(1, 11, 4.2)
    assert play.of(Publish)[0].event.reason == "rank 11 goes on after it was stopped for 3.2 s"
    play.at(6.0) >> DeadlineReached() << ()
    play >> RankContinued(1, 11, 6.0) << ()  # never stopped, as far as known


def test_the_wrapper_judges_its_own_calls() -> None:
    play = playing(in_call=(1,))
    play.at(1.0) >> stopped(1.0)
    play.at(6.0) >> DeadlineReached() << ()
    assert stopped_ranks.next_deadline_s(play.state) is None


def test_a_supervisor_that_was_stopped_too_first_reads_what_it_has_missed() -> None:
    play = playing()
    play.at(1.0) >> stopped(1.0)
    late_s = 6.0 + 3600.0
    play.at(late_s) >> DeadlineReached() << ()
    assert stopped_ranks.next_deadline_s(play.state) == late_s + stopped_ranks.CATCH_UP_S
    play.at(late_s + 0.1) >> RankContinued(1, 11, late_s)
    assert stopped_ranks.next_deadline_s(play.state) is None


def test_an_end_forgets_it() -> None:
    for end in (WorkerEnded(1), WorkersEnding()):
        play = playing()
        play.at(1.0) >> stopped(1.0)
        play >> end << ()
        assert play.state == stopped_ranks.initial_state()


@given(st.lists(st.tuples(st.sampled_from(("stop", "go on", "end")), st.integers(0, 2), st.integers(0, 4))))
def test_only_a_rank_that_has_been_stopped_for_its_whole_limit_hangs(steps: list[tuple[str, int, int]]) -> None:
    play, since = playing(), dict[int, float]()
    for what, local_rank, pause_s in steps:
        for moment_s in [play.now_s + each for each in range(1, pause_s + 1)]:
            play.at(moment_s) >> DeadlineReached()
            for hang in play.of(DeclareHang):
                assert moment_s - since.pop(hang.local_rank) == 5.0
            assert all(moment_s - each < 5.0 for each in since.values())
        if what == "stop":
            play >> stopped(play.now_s, local_rank=local_rank)
            since[local_rank] = play.now_s
        else:
            play >> (RankContinued(local_rank, 10, play.now_s) if what == "go on" else WorkerEnded(local_rank))
            since.pop(local_rank, None)


# --- in a job ------------------------------------------------------------------------------------------------------


def job_with_a_stopped_rank(limits: HangLimits) -> OneNode:
    job = running(rules(2, hang_limits=limits, rank_termination_signal=KILL))
    return job.send(node_messages.RankStopped(JOB, 0, 1, 101, STOP, 2.0), at=2.0)


def test_a_job_without_any_client_ends_its_stopped_rank() -> None:
    job = job_with_a_stopped_rank(HangLimits(heartbeat_s=5.0))
    assert len(job.said("rank_stopped")) == 1
    job.pass_to(6.9)
    assert job.said("hang_detected") == []
    job.pass_to(8.0)
    assert job.said("hang_detected") == ["rank 1 is stopped (SIGSTOP) for 5.0 s"]
    assert [each.local_ranks for each in job.of(node_messages.SignalWorkers) if each.signal == KILL] == [(1,)]


def test_its_own_limit_counts_where_a_client_has_one() -> None:
    job = running(rules(2, hang_limits=HangLimits(heartbeat_s=5.0)))
    job.send(node_messages.ClientJoined(JOB, 0, 1, HangLimits(heartbeat_s=20.0), Progress(0.0, 0.0)))
    job.send(node_messages.RankStopped(JOB, 0, 1, 101, STOP, 2.0), at=2.0).pass_to(21.0)
    assert job.said("hang_detected") == []
    job.pass_to(23.0)
    assert len(job.said("hang_detected")) == 1


def test_no_limit_means_that_it_is_only_reported() -> None:
    job = job_with_a_stopped_rank(HangLimits(heartbeat_s=None)).pass_to(1e6)
    assert len(job.said("rank_stopped")) == 1
    assert job.said("hang_detected") == []
    job.send(node_messages.RankContinued(JOB, 0, 1, 1e6))
    assert len(job.said("rank_continued")) == 1


def test_a_rank_in_a_wrapped_call_is_left_to_the_wrapper() -> None:
    job = running(rules(2, hang_limits=HangLimits(heartbeat_s=40.0)))
    settings = CallSettings(soft_timeout_s=10.0, hard_timeout_s=20.0, termination_grace_s=5.0)
    for local_rank in range(2):
        job.send(node_messages.RankSaid(JOB, 0, local_rank, CallEnter(1, local_rank, 2, settings, Stage.ENTERING)))
    job.send(node_messages.RankStopped(JOB, 0, 1, 101, STOP, 2.0), at=2.0).pass_to(60.0)
    assert job.said("hang_detected") == []


def test_a_group_that_is_being_ended_is_not_judged() -> None:
    job = running(rules(2, hang_limits=HangLimits(heartbeat_s=5.0), workers_stop_timeout_s=60.0))
    job.send(node_messages.RestartRequested(JOB, "wished"), at=1.0)
    job.send(node_messages.RankStopped(JOB, 0, 1, 101, STOP, 2.0), at=2.0).pass_to(20.0)
    assert job.said("rank_stopped") == []
    assert job.said("hang_detected") == []
