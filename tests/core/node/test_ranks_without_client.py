"""What is noticed without a word from the script goes to the machine that it concerns."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import signal as signals

import msgspec

from supervisor.core.facts import HangLimits, JobRules, Progress
from supervisor.core.job_phases import Running, State
from supervisor.core.node import call_watch, node_messages, rank_monitor, ranks_without_client, worker_group
from supervisor.core.node.hang_response import RankHung
from supervisor.core.node.node_messages import DeadlineReached, Publish
from supervisor.core.node.ranks_without_client import Ranks
from supervisor.core.worker_messages import PrepareWorkers, StopWorkers, Worker
from tests.core.one_node import JOB
from tests.core.playbook import Playbook

STOPPED = node_messages.RankStopped(JOB, 0, 1, 812, int(signals.SIGSTOP), 1.0)


def ranks_of(monitor: rank_monitor.State, rules: JobRules, calculated: HangLimits | None = None) -> Ranks:
    job = State("a", rules, Running(), limits=calculated, last_signal=int(signals.SIGTERM))
    group = worker_group.Running(0, (Worker(0, 4, 811), Worker(1, 5, 812)))
    return Ranks(4, (monitor, monitor), (call_watch.Idle(), call_watch.Idle()), job, group)


def playing(
    monitor: rank_monitor.State, *, calculated: HangLimits | None = None
) -> Playbook[ranks_without_client.State]:
    rules = JobRules(JOB, 2, hang_limits=HangLimits(heartbeat_s=5.0))
    ranks = ranks_of(monitor, rules, calculated)
    return Playbook(ranks_without_client.step, ranks_without_client.initial_state(), cycle=0, ranks=ranks, rules=rules)


def test_a_stop_is_told_by_global_rank_and_judged_by_the_limit_of_the_job() -> None:
    play = playing(rank_monitor.Silent())
    play.at(1.0) >> STOPPED
    assert play.of(Publish)[0].event.rank == 5
    assert ranks_without_client.next_deadline_s(play.state) == 6.0
    play.at(6.0) >> DeadlineReached() << RankHung(1, 5, "is stopped (SIGSTOP) for 5.0 s")


def test_calculated_limits_come_before_configured_ones() -> None:
    play = playing(rank_monitor.Silent(), calculated=HangLimits(heartbeat_s=9.0))
    play.at(1.0) >> STOPPED
    assert ranks_without_client.next_deadline_s(play.state) == 10.0


def test_who_is_being_ended_is_not_judged() -> None:
    play = playing(rank_monitor.Gone())
    play >> STOPPED << ()
    play = playing(rank_monitor.Silent())
    play >> STOPPED
    play >> StopWorkers(15, 1.0) << ()
    assert ranks_without_client.next_deadline_s(play.state) is None


def test_ranks_that_take_their_time_to_end_are_told_by_global_rank() -> None:
    play = playing(rank_monitor.Gone())
    play.at(0.0) >> StopWorkers(15, 30.0) << ()
    assert ranks_without_client.next_deadline_s(play.state) == 2.0
    play.at(2.0) >> DeadlineReached() << node_messages.LookAtRanks(JOB, 0, 1.0)
    play >> node_messages.RanksLookedAt(JOB, 0)
    (said,) = play.of(Publish)
    assert said.event.reason == "ranks 4 to 5 have 28 s left to end; another signal kills them at once"


def test_a_rank_that_is_left_behind_is_not_waited_for_any_more() -> None:
    """The kernel keeps it (seed 60043705 of the simulator): the job has ended without it."""
    rules = JobRules(JOB, 2)
    before = ranks_of(rank_monitor.Gone(), rules)
    state, _ = ranks_without_client.step(
        ranks_without_client.initial_state(), StopWorkers(15, 30.0), now_s=0.0, cycle=0, ranks=before, rules=rules
    )
    workers = worker_group.workers_of(before.group)
    for group in (worker_group.Killing(0, workers), worker_group.Empty(workers)):
        after = msgspec.structs.replace(before, group=group)
        assert (
            ranks_without_client.step(state, DeadlineReached(), now_s=2.0, cycle=0, ranks=after, rules=rules)[1] == ()
        )


def test_only_the_node_of_rank_0_reports_limits_that_nothing_arms() -> None:
    play = playing(rank_monitor.Silent())  # its first rank is 4
    play >> PrepareWorkers(0)
    play >> node_messages.WorkerSpawned(JOB, 0, 0, 100)
    assert ranks_without_client.next_deadline_s(play.state) is None


def test_a_silent_main_thread_is_a_hang_of_that_rank() -> None:
    rules = JobRules(JOB, 2, hang_limits=HangLimits(heartbeat_s=60.0), auto_heartbeat_s=5.0)
    ranks = ranks_of(rank_monitor.Silent(), rules)
    play = Playbook(ranks_without_client.step, ranks_without_client.initial_state(), cycle=0, ranks=ranks, rules=rules)
    play.at(1.0) >> node_messages.WorkerSpawned(JOB, 0, 1, 812)
    play.at(6.0) >> DeadlineReached() << node_messages.ReadProgress(JOB, 0, 1)
    silent = node_messages.ProgressRead(JOB, 0, 1, Progress(1.0, 1.0, executed_at_s=1.0))
    play >> silent << RankHung(1, 5, "executed no Python code for 5.0 s (limit 5.0 s)")
    play.at(7.0) >> STOPPED
    assert "after 5 s it counts as a hang" in play.of(Publish)[0].event.reason


def test_without_that_limit_no_page_is_read() -> None:
    play = playing(rank_monitor.Silent())
    play >> node_messages.WorkerSpawned(JOB, 0, 1, 812)
    assert ranks_without_client.next_deadline_s(play.state) is None
