"""Workers from the first fork to the last process: starts, exits, grace periods, kills."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import itertools
import signal as signals

import msgspec
import pytest

from supervisor.core.facts import Assignment, Cause, JobRules, WorkerExit
from supervisor.core.node import node_messages
from supervisor.core.node import worker_group as group
from supervisor.core.node.node_messages import DeadlineReached, KillTree, Publish, SignalWorkers, WorkersEmptied
from supervisor.core.stop_verdict import STOP_FOLLOWS_S
from supervisor.core.worker_messages import (
    KillRanks,
    KillWorkers,
    LoseWorkers,
    PrepareWorkers,
    RankExited,
    StartWorkers,
    StopWorkers,
    WorkersFaulted,
    WorkersGone,
    WorkersLinger,
    WorkersRun,
    WorkersSucceeded,
)
from tests.core.playbook import Playbook

JOB = "job"
TERM, KILL = int(signals.SIGTERM), int(signals.SIGKILL)
INT = int(signals.SIGINT)


def prepared(world_size: int = 2, **rules: object) -> Playbook[group.State]:
    play = Playbook(group.step, group.initial_state(), rules=JobRules(JOB, world_size, **rules))  # pyright: ignore[reportArgumentType]
    play >> PrepareWorkers(0) << ()
    return play


def started(world_size: int = 2, **rules: object) -> Playbook[group.State]:
    play = prepared(world_size, **rules)
    assignment = Assignment(0, world_size=world_size, first_rank=4)
    play >> StartWorkers(assignment, "h", 1) << node_messages.SpawnWorkers(JOB, assignment, "h", 1)
    return play


def running(world_size: int = 2, **rules: object) -> Playbook[group.State]:
    play = started(world_size, **rules)
    for local_rank in range(world_size):
        play >> node_messages.WorkerSpawned(JOB, 0, local_rank, 100 + local_rank)
    assert play.of(WorkersRun)
    return play


def exited(local_rank: int, *, code: int | None = None, signal: int | None = None) -> node_messages.WorkerExited:
    return node_messages.WorkerExited(
        JOB, 0, WorkerExit(local_rank, 4 + local_rank, 100 + local_rank, code, signal, 0.0)
    )


def test_running_is_reported_once_all_have_started() -> None:
    play = started(2)
    play >> node_messages.WorkerSpawned(JOB, 0, 0, 100)
    play.lacks(WorkersRun)
    play >> node_messages.WorkerSpawned(JOB, 0, 1, 101)
    play.has(WorkersRun())
    assert [(each.rank, each.pid) for each in group.workers_of(play.state)] == [(4, 100), (5, 101)]


def test_the_first_failure_is_the_fault_and_the_second_an_event() -> None:
    play = running()
    play >> exited(1, signal=KILL)
    play.has(RankExited(exited(1, signal=KILL).exit), WorkersFaulted("rank 5 (pid 101) was killed by SIGKILL"))
    assert [each.event.kind for each in play.of(Publish)] == ["worker_failed"]
    play >> exited(0, code=1)
    play.lacks(WorkersFaulted)
    play >> exited(0, code=1) << ()  # reported twice


def test_a_worker_that_fails_while_others_still_start_is_a_fault() -> None:
    play = started(2)
    play >> node_messages.WorkerSpawned(JOB, 0, 0, 100)
    play >> exited(0, code=2)
    play.has(WorkersFaulted("rank 4 (pid 100) failed with exit code 2"))


def test_a_rank_that_exits_0_early_is_an_event() -> None:
    play = running()
    play >> exited(0, code=0)
    play.lacks((WorkersFaulted, WorkersSucceeded))
    assert group.next_deadline_s(play.state) is None
    play >> exited(1, code=0)
    play.has(WorkersSucceeded())


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_a_rank_that_exits_0_for_want_of_a_supervisor_is_a_fault_in_any_order(order: tuple[int, ...]) -> None:
    play = running(3)
    faults: list[WorkersFaulted] = []
    for local_rank in order:
        end = exited(local_rank, code=0)
        if local_rank == 1:
            told = msgspec.structs.replace(end.exit, unattended=True, error="no supervisor came back")
            end = msgspec.structs.replace(end, exit=told)
        play >> end
        faults += play.of(WorkersFaulted)
        play.lacks(WorkersSucceeded)
    assert faults == [WorkersFaulted("rank 5 (pid 101) exited with code 0: no supervisor came back")]
    play >> KillWorkers() >> WorkersEmptied(JOB, 0, ())
    (gone,) = play.of(WorkersGone)
    assert not gone.all_succeeded
    assert gone.cause is not None


def test_a_completion_grace_makes_it_a_fault() -> None:
    play = running(3, completion_grace_s=5.0)
    play.at(10.0) >> exited(0, code=0)
    play.at(12.0) >> exited(1, code=0)
    assert group.next_deadline_s(play.state) == 15.0
    play.at(14.9) >> DeadlineReached() << ()
    play.at(15.0) >> DeadlineReached()
    play << WorkersFaulted("rank 4 exited with code 0 and rank 6 still ran after 5.0 s (completion grace)")


def test_a_stop_gives_exactly_the_grace_and_then_ends_everything() -> None:
    play = running()
    play.at(1.0) >> StopWorkers(TERM, 15.0) << SignalWorkers(JOB, 0, TERM, resume=True, grace_s=15.0)
    play >> exited(0, signal=TERM)
    assert [each.event.kind for each in play.of(Publish)] == ["worker_exited"]
    play.at(15.9) >> DeadlineReached() << ()
    play.at(16.0) >> DeadlineReached() << KillTree(JOB, 0)
    play >> DeadlineReached() << ()
    play >> WorkersEmptied(JOB, 0, (101,)) << WorkersGone(None, all_succeeded=False, stuck_pids=(101,))
    assert group.next_deadline_s(play.state) is None


def test_workers_that_linger_after_the_signal_of_a_restart_are_reported_ever_more_rarely() -> None:
    play = running()
    play.at(1.0) >> StopWorkers(TERM, 15.0, for_restart=True) << SignalWorkers(JOB, 0, TERM, resume=True, grace_s=15.0)
    for at_s in (1.3, 2.2, 4.9, 13.0):
        assert group.next_deadline_s(play.state) == pytest.approx(at_s, abs=1e-3)
        play.at(at_s - 0.01) >> DeadlineReached() << ()
        play.at(at_s + 1e-5) >> DeadlineReached() << WorkersLinger()  # late by rounding
    play.at(16.0) >> DeadlineReached() << KillTree(JOB, 0)


@pytest.mark.parametrize("later", [False, True])
def test_a_stop_of_the_job_reports_no_worker_that_lingers(later: bool) -> None:
    play = running()
    play.at(1.0) >> StopWorkers(TERM, 15.0, for_restart=later)
    if later:
        play.at(1.1) >> StopWorkers(TERM, 15.0) << ()
    assert group.next_deadline_s(play.state) == 16.0
    play.at(15.9) >> DeadlineReached() << ()


def test_escapees_are_ended_though_all_workers_left_in_time() -> None:
    play = running()
    play >> StopWorkers(TERM, 15.0)
    play >> exited(0, signal=TERM)
    play.lacks(KillTree)
    play >> exited(1, code=0)
    play.has(KillTree(JOB, 0))


@pytest.mark.parametrize("order", [StopWorkers(TERM, 15.0), KillWorkers()])
def test_without_workers_a_stop_only_clears_up(order: StopWorkers | KillWorkers) -> None:
    play = prepared()
    play >> order << KillTree(JOB, 0)
    play >> order << ()
    play >> WorkersEmptied(JOB, 0) << WorkersGone(None, all_succeeded=False)


def test_a_later_stop_never_prolongs_the_grace() -> None:
    play = running()
    play >> StopWorkers(TERM, 15.0)
    play.at(1.0) >> StopWorkers(TERM, 1800.0) << ()
    play >> StopWorkers(INT, 1800.0) << SignalWorkers(JOB, 0, INT, resume=True, grace_s=14.0)
    assert group.next_deadline_s(play.state) == 15.0
    play >> StopWorkers(INT, 2.0) << ()
    assert group.next_deadline_s(play.state) == 3.0


@pytest.mark.parametrize("signal", [TERM, INT])
@pytest.mark.parametrize("for_restart", [True, False])
def test_a_signal_that_has_just_caused_the_fault_gives_its_whole_grace(signal: int, for_restart: bool) -> None:
    """A scheduler ends ranks and launchers at once; the fault that a rank's end is must not shorten what saving has."""
    play = running()
    play.at(1.0) >> StopWorkers(TERM, 15.0, for_restart=for_restart)
    play.at(1.1) >> StopWorkers(signal, 1800.0, by_signal=True)
    assert group.next_deadline_s(play.state) == pytest.approx(1801.1)
    play.at(1.2) >> StopWorkers(signal, 15.0)
    assert group.next_deadline_s(play.state) == pytest.approx(16.2)


def test_a_signal_later_than_that_does_not_prolong_the_grace() -> None:
    play = running()
    play.at(1.0) >> StopWorkers(TERM, 15.0, for_restart=True)
    play.at(1.0 + STOP_FOLLOWS_S) >> StopWorkers(TERM, 1800.0, by_signal=True)
    assert group.next_deadline_s(play.state) == 16.0


def test_a_kill_overtakes_a_stop() -> None:
    play = running()
    play >> StopWorkers(TERM, 15.0)
    play >> KillWorkers() << KillTree(JOB, 0)


def test_a_hung_rank_is_ended_alone_and_its_exit_is_no_failure_of_its_own() -> None:
    play = running()
    play >> KillRanks((1,), KILL, 2.0) << SignalWorkers(JOB, 0, KILL, (1,), tree=False, resume=True)
    assert group.next_deadline_s(play.state) is None
    play >> exited(1, signal=KILL)
    play.has(RankExited(exited(1, signal=KILL).exit)).lacks(WorkersFaulted)


def test_a_hung_rank_that_ignores_its_signal_is_killed_with_its_tree() -> None:
    play = running()
    play.at(1.0) >> KillRanks((0, 1), TERM, 2.0) << SignalWorkers(JOB, 0, TERM, (0, 1), tree=False, resume=True)
    play >> exited(0, signal=TERM)
    play.at(3.0) >> DeadlineReached() << SignalWorkers(JOB, 0, KILL, (1,), tree=True)
    assert group.next_deadline_s(play.state) is None
    play >> KillRanks((0,), TERM, 2.0) << ()


def test_ranks_that_were_ended_by_us_cannot_make_a_success() -> None:
    play = running()
    play >> KillRanks((1,), TERM, 2.0)
    play >> exited(1, code=0)
    play >> exited(0, code=0)
    play.lacks(WorkersSucceeded)


def test_the_grace_of_a_stop_is_for_those_who_may_still_answer() -> None:
    """A rank that survives SIGKILL waits in the kernel (state D): the other's end ends the grace period."""
    play = running(2)
    play >> KillRanks((1,), KILL, 2.0)
    play >> StopWorkers(TERM, 15.0) << SignalWorkers(JOB, 0, TERM, resume=True, grace_s=15.0)
    play >> exited(0, signal=TERM)
    assert play.of(KillTree) == [KillTree(JOB, 0)]
    play >> WorkersEmptied(JOB, 0, (101,))
    assert play.of(WorkersGone) == [WorkersGone(None, False, (101,))]


def test_workers_lost_with_their_spawner_leave_nothing_to_kill() -> None:
    play = running()
    play >> LoseWorkers() << WorkersGone(None, all_succeeded=False)
    play >> exited(0, code=1) << ()
    play >> LoseWorkers() << ()


def test_a_stop_that_all_answer_with_0_says_so() -> None:
    play = running()
    play >> StopWorkers(TERM, 15.0)
    play >> exited(0, code=0)
    play >> exited(1, code=0)
    play >> WorkersEmptied(JOB, 0) << WorkersGone(None, all_succeeded=True)


def test_a_worker_that_was_not_started_says_why() -> None:
    play = started(1)
    play >> node_messages.SpawnFailed(JOB, 0, 0, "cannot start x: permission denied", 126)
    reason = "rank 4 was not started: cannot start x: permission denied"
    play.has(WorkersFaulted(reason))
    play >> StopWorkers(TERM, 15.0) << KillTree(JOB, 0)
    play >> WorkersEmptied(JOB, 0) << WorkersGone(Cause(reason), all_succeeded=False)
