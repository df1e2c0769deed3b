"""A node and its coordinator with ranks in a wrapped call: what is excused, replaced, charged, and how does it end?"""

from __future__ import annotations

import signal as signals

import pytest

from supervisor.core.cluster import coordinator
from supervisor.core.cluster.cluster_messages import CallReport
from supervisor.core.facts import (
    CallWatch,
    Evidence,
    HangLimits,
    JobState,
    Progress,
    WatchMode,
)
from supervisor.core.node import node_messages
from supervisor.core.orders import Introduce
from supervisor.core.wrapped_calls.call_messages import (
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallEnter,
    CallLeave,
    CallRefused,
    CallSettings,
    CallUnderway,
    Committed,
    Entered,
    FaultsReported,
    FromRank,
    Interrupt,
    Interruption,
    IterationBegan,
    Leaving,
    Lost,
    RankFault,
    Restart,
    Stage,
    ToRank,
)
from tests.core.one_node import JOB, OneNode, rules, running

SETTINGS = CallSettings(soft_timeout_s=10.0, hard_timeout_s=20.0, termination_grace_s=5.0)


def say(job: OneNode, local_rank: int, word: FromRank, *, at: float | None = None) -> OneNode:
    return job.send(node_messages.RankSaid(JOB, job.view().cycle, local_rank, word), at=at)


def enter(job: OneNode, local_rank: int, *, call: int = 1, settings: CallSettings = SETTINGS) -> OneNode:
    world_size = job.rules.local_world_size
    return say(job, local_rank, CallEnter(call, local_rank, world_size, settings, Stage.ENTERING))


def told(job: OneNode, kind: type[ToRank]) -> list[tuple[int, ...]]:
    return [each.local_ranks for each in job.of(node_messages.TellRanks) if isinstance(each.order, kind)]


def in_call(world_size: int = 3, *, max_restarts: int = 0, **changed: object) -> OneNode:
    """All ranks run iteration 0 of call 1."""
    job = running(rules(world_size, max_restarts=max_restarts, **changed))
    for local_rank in range(world_size):
        progress = Progress(0.0, 0.0)
        job.send(node_messages.ClientJoined(JOB, 0, local_rank, job.rules.hang_limits, progress))
    for local_rank in range(world_size):
        enter(job, local_rank)
    assert told(job, Entered) == [tuple(range(world_size))]
    for local_rank in range(world_size):
        say(job, local_rank, IterationBegan(1, 0, local_rank, world_size, local_rank, world_size))
    return job


def restart(job: OneNode, numbers: dict[int, int], *, iteration: int = 0) -> OneNode:
    """All remaining ranks report and arrive; `numbers` are current ranks by local rank."""
    for local_rank in numbers:
        say(job, local_rank, FaultsReported(1, iteration))
    for local_rank, rank in numbers.items():
        say(job, local_rank, BarrierArrive(1, iteration, Barrier.ITERATION, rank, True))
    return job


def finish(job: OneNode, numbers: dict[int, int], *, iteration: int = 1) -> OneNode:
    size = len(numbers)
    for local_rank, rank in numbers.items():
        say(job, local_rank, IterationBegan(1, iteration, rank, size, rank, size))
    for local_rank, rank in numbers.items():
        say(job, local_rank, BarrierArrive(1, iteration, Barrier.COMPLETION, rank, True))
    assert [sorted(each) for each in told(job, Committed)] == [sorted(numbers)]
    for local_rank in numbers:
        say(job, local_rank, CallLeave(1, iteration, Leaving.DONE, ""))
    return job


def test_a_rank_killed_in_a_call_is_no_fault_of_the_group_and_the_rest_succeeds() -> None:
    job = in_call().exit(0, 1, signal=9)
    assert told(job, Interrupt) == [(0, 2)]
    restart(job, {0: 0, 2: 2})
    assert told(job, BeginIteration) == [(0, 2)]
    assert job.view().state is JobState.RUNNING
    finish(job, {0: 0, 2: 1})
    job.exit(0, 0, code=0).exit(0, 2, code=0).send(node_messages.WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert (verdict.state, verdict.exit_code) == (JobState.SUCCEEDED, 0)
    assert verdict.reason == "all ranks that remained exited with code 0; the job went on without rank 1"


def test_what_a_lost_rank_has_left_behind_is_ended_at_once() -> None:
    job = in_call().exit(0, 1, signal=9)
    kill = node_messages.SignalWorkers(JOB, 0, 9, (1,), tree=True, sessions=(101,))
    assert job.of(node_messages.SignalWorkers) == [kill]


def test_the_exit_code_of_a_rank_that_left_is_excused_before_and_after_the_commit() -> None:
    for leaves_late in (False, True):
        job = in_call()
        say(job, 1, CallLeave(1, 0, Leaving.FAULT, "SystemExit: 3"))
        if not leaves_late:
            job.exit(0, 1, code=3)
        restart(job, {0: 0, 2: 2})
        finish(job, {0: 0, 2: 1})
        if leaves_late:
            job.exit(0, 1, code=3)
        job.exit(0, 0, code=0).exit(0, 2, code=0).send(node_messages.WorkersEmptied(JOB, 0))
        verdict = job.verdict()
        assert verdict is not None
        assert verdict.state is JobState.SUCCEEDED


def test_the_job_waits_for_the_call_though_only_excused_ranks_have_ended() -> None:
    job = in_call(2).exit(0, 1, signal=9)
    assert job.view().state is JobState.RUNNING
    assert job.verdict() is None


def test_a_failure_after_the_commit_is_an_ordinary_fault() -> None:
    job = in_call(2)
    for local_rank in range(2):
        say(job, local_rank, BarrierArrive(1, 0, Barrier.COMPLETION, local_rank, True))
    job.exit(0, 1, code=1)
    assert "rank 1 (pid 101) failed with exit code 1" in job.view().reason


def test_when_nobody_is_left_the_group_faults_with_the_reasons_and_one_unit() -> None:
    job = in_call(2, max_restarts=1)
    say(job, 0, CallLeave(1, 0, Leaving.FAULT, "RestartAbort: too few"))
    job.exit(0, 0, code=1)
    say(job, 1, CallLeave(1, 0, Leaving.FAULT, "RestartAbort: too few"))
    job.exit(0, 1, code=1).send(node_messages.WorkersEmptied(JOB, 0))
    assert job.view().cycle == 1
    assert coordinator.restarts_used(job.coordinator) == 1
    (reason,) = job.said("call_lost")
    assert reason.startswith("no rank is left in call 1: rank 0 left the call: RestartAbort: too few; rank 1 left")
    assert job.said("root_cause_found") == []
    assert job.said("restart_decided") == [f"{reason}; restarting at once, restarts used 1 of 1"]


def test_ranks_that_live_on_after_a_lost_call_end_the_job_as_they_end() -> None:
    job = in_call(2)
    for local_rank in range(2):
        say(job, local_rank, CallLeave(1, 0, Leaving.FAULT, "RestartAbort: enough"))
    assert job.view().state is JobState.RUNNING
    job.exit(0, 0, code=0).exit(0, 1, code=0).send(node_messages.WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.state is JobState.SUCCEEDED


def test_a_rank_that_fails_before_it_has_entered_is_an_ordinary_fault() -> None:
    job = running(rules(2, max_restarts=1))
    enter(job, 0).exit(0, 1, signal=9)
    assert job.view().state is JobState.RESTARTING


def test_a_rank_that_ends_before_it_has_entered_is_not_waited_for() -> None:
    job = running(rules(2))
    enter(job, 0).exit(0, 1, code=0)
    assert told(job, CallRefused) == [(0,)]


def test_a_restart_of_the_cycle_forgets_the_call() -> None:
    job = in_call(2, max_restarts=1)
    job.send(node_messages.RestartRequested(JOB, "a person asked"))
    job.exit(0, 0, signal=15).exit(0, 1, signal=15).send(node_messages.WorkersEmptied(JOB, 0))
    assert job.said("rank_lost_in_call") == []
    job.run_cycle(1)
    enter(job, 0)
    enter(job, 1)
    assert told(job, Entered) == [(0, 1)]


# --- new processes -------------------------------------------------------------------------------------------------


def replaced() -> OneNode:
    job = in_call(3, max_restarts=1).exit(0, 1, signal=9)
    (respawn,) = job.of(node_messages.RespawnWorkers)
    assert respawn == node_messages.RespawnWorkers(JOB, 0, (1,))
    assert coordinator.restarts_used(job.coordinator) == 1
    return job


def test_a_killed_rank_gets_a_new_process_that_joins_the_next_iteration() -> None:
    job = replaced().send(node_messages.WorkerSpawned(JOB, 0, 1, 201))
    restart(job, {0: 0, 2: 2})
    assert told(job, BeginIteration) == []
    enter(job, 1)
    assert told(job, BeginIteration) == [(0, 2)]
    assert told(job, Entered) == [(1,)]
    finish(job, {0: 0, 1: 1, 2: 2})
    for local_rank in range(3):
        job.exit(0, local_rank, code=0)
    job.send(node_messages.WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.reason == "all ranks exited with code 0"


@pytest.mark.parametrize(("is_starting", "heard"), [(False, [1]), (True, [])])
def test_the_next_leader_hears_of_a_lost_rank_unless_a_new_process_is_on_its_way(
    is_starting: bool, heard: list[int]
) -> None:
    job = replaced() if is_starting else in_call().exit(0, 1, signal=signals.SIGKILL)
    job.told.clear()
    job.send(node_messages.Ordered(JOB, Introduce()))
    reports = [each for each in job.told if isinstance(each, CallReport)]
    assert [told.member for each in reports for told in each.told if isinstance(told.word, Lost)] == heard


def test_a_new_process_that_can_not_be_started_holds_nobody_up() -> None:
    job = restart(replaced(), {0: 0, 2: 2})
    job.send(node_messages.SpawnFailed(JOB, 0, 1, "cannot start x: not found", 127))
    assert told(job, BeginIteration) == [(0, 2)]
    assert job.view().state is JobState.RUNNING


def late() -> OneNode:
    """The others continued without it."""
    job = restart(replaced().send(node_messages.WorkerSpawned(JOB, 0, 1, 201)), {0: 0, 2: 2})
    job.pass_to(job.now_s + 5.0)
    assert told(job, BeginIteration) == [(0, 2)]
    return job


def test_a_new_process_that_comes_too_late_joins_the_next_iteration() -> None:
    job = enter(late(), 1)
    assert told(job, CallUnderway) == [(1,)]
    for local_rank, rank in {0: 0, 2: 1}.items():
        say(job, local_rank, IterationBegan(1, 1, rank, 2, rank, 2))
    say(job, 0, RankFault(1, 1, 0, Interruption.EXCEPTION, "ValueError: bad loss"))
    say(job, 2, FaultsReported(1, 1))
    for local_rank, rank in {0: 0, 2: 1}.items():
        say(job, local_rank, BarrierArrive(1, 1, Barrier.ITERATION, rank, True))
    assert (told(job, BeginIteration), told(job, Entered)) == ([(0, 2)], [(1,)])
    finish(job, {0: 0, 2: 1, 1: 2}, iteration=2)
    for local_rank in range(3):
        job.exit(0, local_rank, code=0)
    verdict = job.send(node_messages.WorkersEmptied(JOB, 0)).verdict()
    assert verdict is not None
    assert verdict.reason == "all ranks exited with code 0"


@pytest.mark.parametrize("comes", ["before the end", "after the end"])
def test_a_new_process_that_has_not_joined_is_released_and_its_exit_excused(comes: str) -> None:
    job = late()
    if comes == "before the end":
        enter(job, 1)
    for local_rank, rank in {0: 0, 2: 1}.items():
        say(job, local_rank, IterationBegan(1, 1, rank, 2, rank, 2))
        say(job, local_rank, BarrierArrive(1, 1, Barrier.COMPLETION, rank, True))
    if comes == "after the end":
        assert told(job, Committed) == [(0, 2)]
        enter(job, 1)
    assert 1 in {local_rank for each in told(job, Committed) for local_rank in each}
    say(job, 1, CallLeave(1, 0, Leaving.DONE, ""))
    job.exit(0, 1, code=1).exit(0, 0, code=0).exit(0, 2, code=0).send(node_messages.WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.state is JobState.SUCCEEDED


def test_nothing_new_is_started_on_a_node_that_was_excluded_or_for_a_job_that_wants_its_end() -> None:
    for action in ("exclude_this_node", "shutdown_workload"):
        job = in_call(3, max_restarts=3)
        job.send(node_messages.ControlRequested(JOB, 0, 0, action, "bad loss"))
        job.exit(0, 1, signal=9)
        assert job.of(node_messages.RespawnWorkers) == []
        restart(job, {0: 0, 2: 2})
        assert told(job, BeginIteration) == [(0, 2)]


def test_a_new_process_is_watched_as_the_first_one_was() -> None:
    job = in_call(2, max_restarts=1, hang_limits=HangLimits(heartbeat_s=50.0)).exit(0, 1, signal=9)
    job.send(node_messages.WorkerSpawned(JOB, 0, 1, 201))
    beat = Progress(0.0, 0.0, heartbeat_at_s=0.0, heartbeats=1)
    job.send(node_messages.ClientJoined(JOB, 0, 1, job.rules.hang_limits, beat))
    job.send(node_messages.DeadlineReached(), at=50.0)
    assert 1 in [each.local_rank for each in job.of(node_messages.ReadProgress)]


# --- timeouts ------------------------------------------------------------------------------------------------------


def page(job: OneNode, local_rank: int, progressed_at_s: float) -> OneNode:
    stamps = CallWatch(WatchMode.ON, 0.0, progressed_at_s)
    progress = Progress(0.0, 0.0, read_at_s=job.now_s, call_watch=stamps)
    return job.send(node_messages.ProgressRead(JOB, 0, local_rank, progress))


def test_a_rank_that_stands_still_restarts_all_and_is_ended_with_stacks_if_it_stays() -> None:
    job = in_call(2).pass_to(10.0)
    assert {each.local_rank for each in job.of(node_messages.ReadProgress)} == {0, 1}
    page(job, 0, 10.0)
    page(job, 1, 0.0)
    assert told(job, Interrupt) == [(0, 1)]
    say(job, 0, FaultsReported(1, 0))
    assert told(job, Restart) == [(0, 1)]
    say(job, 0, BarrierArrive(1, 0, Barrier.ITERATION, 0, True))
    job.send(node_messages.DeadlineReached(), at=20.0)
    page(job, 1, 0.0)
    assert job.of(node_messages.CollectEvidence)
    job.send(node_messages.EvidenceCollected(JOB, 0, Evidence(source="fake")))
    page(job, 1, 0.0)
    (signal,) = job.of(node_messages.SignalWorkers)
    assert (signal.signal, signal.local_ranks, signal.tree, signal.resume) == (15, (1,), False, True)
    assert job.said("hard_timeout_reached") == [
        "rank 1 executed no Python code for 20.0 s (hard timeout 20.0 s); its process is ended"
    ]
    job.exit(0, 1, signal=int(signals.SIGTERM))
    assert told(job, BeginIteration) == [(0,)]


def test_a_rank_whose_page_was_not_read_while_it_was_away_is_watched_again_once_it_is_back() -> None:
    job = in_call(2).send(node_messages.ClientLeft(JOB, 0, 1)).pass_to(10.0)
    assert {each.local_rank for each in job.of(node_messages.ReadProgress)} == {0, 1}
    page(job, 0, 10.0)
    job.send(node_messages.ClientJoined(JOB, 0, 1, job.rules.hang_limits, Progress(0.0, 0.0)))
    job.pass_to(20.0)
    assert {each.local_rank for each in job.of(node_messages.ReadProgress)} == {0, 1}


def test_a_soft_timeout_alone_ends_nobody() -> None:
    job = in_call(2).pass_to(10.0)
    page(job, 0, 10.0)
    page(job, 1, 0.0)
    restart(job, {0: 0, 1: 1})
    assert told(job, BeginIteration) == [(0, 1)]
    assert job.of(node_messages.SignalWorkers) == []


def beat(job: OneNode, local_rank: int, at_s: float) -> OneNode:
    """The page as it is now: the main thread executes bytecode, the last heartbeat was sent at `at_s`."""
    stamps = CallWatch(WatchMode.ON, 0.0, job.now_s)
    progress = Progress(0.0, 0.0, at_s, 1, read_at_s=job.now_s, call_watch=stamps)
    return job.send(node_messages.ProgressRead(JOB, 0, local_rank, progress))


LIMIT = HangLimits(heartbeat_s=6.0)


def test_a_limit_that_a_rank_has_not_armed_concerns_no_call() -> None:
    job = in_call(2, hang_limits=LIMIT)
    assert told(job, CallRefused) == []
    job.pass_to(9.0)
    for local_rank in range(2):
        page(job, local_rank, 9.0)
    job.pass_to(10.0)
    assert job.said("call_before_limit") == job.said("hang_detected") == []
    assert told(job, Interrupt) == []


def test_a_limit_that_runs_out_in_a_call_restarts_it_inside_the_processes_first() -> None:
    job = in_call(2, hang_limits=LIMIT, max_restarts=3).pass_to(6.0)
    beat(beat(job, 0, 1.0), 1, 5.0)
    assert job.said("call_before_limit") == [
        "the limit between heartbeats (6.0 s) runs out before hard_timeout (20.0 s) and termination_grace_time (5.0 s) "
        "of the wrapped call; if it does, all ranks first restart inside their processes, and a rank that stays silent "
        "for 16.0 s is ended"
    ]
    job.pass_to(7.0)
    beat(beat(job, 1, 6.0), 0, 1.0)
    assert told(job, Interrupt) == [(0, 1)]
    assert job.said("iteration_interrupted")[0].endswith("rank 0 sent no heartbeat for 6.0 s (limit 6.0 s)")
    restart(job.pass_to(8.0), {0: 0, 1: 1})
    assert told(job, BeginIteration) == [(0, 1)]
    assert job.said("hang_detected") == []


def test_a_limit_ends_the_cycle_if_the_restart_inside_the_processes_has_not_helped() -> None:
    job = in_call(2, hang_limits=LIMIT, max_restarts=3).pass_to(7.0)
    beat(beat(job, 1, 6.5), 0, 1.0)
    assert told(job, Interrupt) == [(0, 1)]
    restart(job.pass_to(8.0), {0: 0, 1: 1})
    job.pass_to(14.0)
    beat(beat(job, 1, 13.0), 0, 1.0)
    assert job.said("hang_detected")[0].startswith("rank 0 sent no heartbeat for 6.0 s (limit 6.0 s)")


def test_a_rank_that_waits_for_the_others_of_its_call_is_not_judged_by_its_limits() -> None:
    job = in_call(2, hang_limits=LIMIT).pass_to(2.0)
    say(job, 0, BarrierArrive(1, 0, Barrier.COMPLETION, 0, True))
    for moment_s in (7.0, 14.0, 21.0):
        job.pass_to(moment_s)
        beat(beat(job, 0, 1.0), 1, moment_s)
    assert told(job, Interrupt) == []
    assert job.said("hang_detected") == []


def test_a_silent_connection_is_lost_in_time_and_its_process_ended() -> None:
    job = in_call(2).send(node_messages.ClientLeft(JOB, 0, 1), at=5.0).pass_to(35.0)
    assert job.said("rank_lost_in_call") == [
        "rank 1 lost its connection and did not come back within 30 s, in iteration 0 of call 1"
    ]
    assert {each.local_ranks for each in job.of(node_messages.SignalWorkers)} == {(1,)}


def test_a_fence_goes_on_to_the_spawner() -> None:
    job = running(rules(1)).send(node_messages.FenceMoved(JOB, 12.5))
    assert job.of(node_messages.MoveFence) == [node_messages.MoveFence(JOB, 12.5)]
    assert job.state.jobs[JOB].job.has_met_leader, "whoever moves it has answered"
