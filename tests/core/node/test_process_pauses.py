"""A job that is suspended as a whole and goes on blames no rank, and still finds one that hangs."""

from __future__ import annotations

import random
import signal

import pytest

from supervisor.core.cluster.cluster_messages import NodeExcluded, NodeJoined
from supervisor.core.facts import CallWatch, HangLimits, Progress, WatchMode
from supervisor.core.gpu_memory import GpuMemory, MemoryReport, MemoryRules
from supervisor.core.node import gpu_reclaim, hang_response, node_messages, spawner_deadlines
from supervisor.core.node.node_messages import ClientJoined, DeadlineReached, ProcessPaused, ProgressRead, ReadProgress
from supervisor.core.node.process_pauses import PAUSES_MAX
from supervisor.core.node_check_facts import CheckPlan, Health
from supervisor.core.rank_silence import moved_s
from supervisor.core.wrapped_calls.call_messages import CallEnter, CallSettings, Interrupt, IterationBegan, Stage
from tests.core.one_node import JOB, NOW, OneNode, rules, running

LIMITS = HangLimits(heartbeat_s=10.0)


def beating(beat_at_s: float) -> Progress:
    return Progress(0.0, 0.0, beat_at_s, 1)


def joined() -> OneNode:
    job = running(rules(1, hang_limits=LIMITS))
    return job.send(ClientJoined(JOB, 0, 0, LIMITS, beating(0.0)))


def read(job: OneNode, progress: Progress) -> OneNode:
    """Passes the deadline, which must want the page, and answers."""
    job.send(DeadlineReached())
    assert job.of(ReadProgress)
    return job.send(ProgressRead(JOB, 0, 0, progress))


def test_a_rank_that_was_suspended_with_its_supervisor_is_not_blamed() -> None:
    job = joined().send(ProcessPaused(8.0), at=100.0)
    read(job, beating(7.0))
    assert job.of(node_messages.CollectEvidence) == []
    job.send(DeadlineReached(), at=108.9)
    assert job.of(ReadProgress) == [], "the silence had lasted for a second"


def test_a_rank_that_hangs_is_found_later_by_no_more_than_the_pause() -> None:
    job = joined().send(ProcessPaused(8.0), at=100.0)
    read(job, beating(7.0))
    read(job.send(at=109.0), beating(7.0))
    assert job.of(node_messages.CollectEvidence)


def test_a_rank_that_ran_during_the_pause_is_judged_from_its_end() -> None:
    job = joined().send(ProcessPaused(8.0), at=100.0)
    read(job, beating(99.0))
    read(job.send(at=110.0), beating(99.0))
    assert job.of(node_messages.CollectEvidence)


def test_a_main_thread_that_was_suspended_is_not_blamed() -> None:
    job = running(rules(1, auto_heartbeat_s=5.0)).send(ProcessPaused(4.0), at=60.0)
    read(job, Progress(60.0, 60.0, executed_at_s=3.0))
    assert job.of(node_messages.CollectEvidence) == []
    read(job.send(at=64.0), Progress(64.0, 64.0, executed_at_s=3.0))
    assert job.of(node_messages.CollectEvidence)


def calling(evidence_budget_s: float = 2.0) -> OneNode:
    """Returns a job whose rank is in a wrapped call."""
    job = running(rules(1, evidence_budget_s=evidence_budget_s)).send(
        ClientJoined(JOB, 0, 0, HangLimits(), Progress(0.0, 0.0))
    )
    settings = CallSettings(soft_timeout_s=10.0, hard_timeout_s=20.0, termination_grace_s=5.0)
    job.send(node_messages.RankSaid(JOB, 0, 0, CallEnter(1, 0, 1, settings, Stage.ENTERING)))
    return job.send(node_messages.RankSaid(JOB, 0, 0, IterationBegan(1, 0, 0, 1, 0, 1)))


SILENT = Progress(0.0, 0.0, call_watch=CallWatch(WatchMode.ON, 1.0, 7.0))


def test_a_wrapped_call_that_was_suspended_is_not_interrupted() -> None:

    def interrupts(job: OneNode) -> list[node_messages.TellRanks]:
        return [each for each in job.of(node_messages.TellRanks) if isinstance(each.order, Interrupt)]

    job = calling().send(ProcessPaused(8.0), at=100.0)
    assert interrupts(read(job, SILENT)) == []
    assert interrupts(read(job.send(at=109.0), SILENT))


def test_a_rank_that_was_suspended_after_the_sigterm_of_its_wrapped_call_keeps_its_grace() -> None:
    def signals() -> list[int]:
        return [each.signal for each in job.of(node_messages.SignalWorkers)]

    job = read(calling(evidence_budget_s=0.0).send(at=17.0), SILENT)
    read(job.send(at=27.0), SILENT)
    assert signals() == [signal.SIGTERM]
    job.send(ProcessPaused(28.0), at=5000.0).send(DeadlineReached(), at=5003.9)
    assert signals() == []
    job.send(DeadlineReached(), at=5004.1)
    assert signals()[-1:] == [signal.SIGKILL]


def test_a_rank_that_was_suspended_before_it_came_back_to_its_wrapped_call_has_all_its_time_left() -> None:
    job = calling().send(node_messages.ClientLeft(JOB, 0, 0), at=5.0)
    job.send(ProcessPaused(10.0), at=5000.0).send(DeadlineReached(), at=5024.9)
    assert job.said("rank_lost_in_call") == []
    job.send(DeadlineReached(), at=5025.1)
    assert job.said("rank_lost_in_call")


def test_a_spawner_that_was_suspended_has_all_its_time_left() -> None:
    job = OneNode(rules(1))
    job.send(ProcessPaused(job.now_s + 1.0), at=job.now_s + 5000.0).send(DeadlineReached())
    assert job.of(node_messages.KillSpawner) == []
    job.send(DeadlineReached(), at=job.now_s + spawner_deadlines.START_S - 2.0)
    assert job.of(node_messages.KillSpawner) == []
    job.send(DeadlineReached(), at=job.now_s + 1.5)
    [killed] = job.of(node_messages.KillSpawner)
    assert "has not answered for 600 s" in killed.reason, "the pause does not count"


def test_a_killed_spawner_that_was_suspended_is_not_given_up() -> None:
    job = OneNode(rules(1))
    job.send(DeadlineReached(), at=job.now_s + spawner_deadlines.START_S)
    assert job.of(node_messages.KillSpawner)
    job.send(ProcessPaused(job.now_s + 1.0), at=job.now_s + 5000.0).send(DeadlineReached())
    job.send(DeadlineReached(), at=job.now_s + spawner_deadlines.KILL_S - 2.0)
    assert isinstance(job.state.jobs[JOB].spawner, spawner_deadlines.Killing)
    job.send(DeadlineReached(), at=job.now_s + 1.5)
    assert not isinstance(job.state.jobs[JOB].spawner, spawner_deadlines.Killing)


def test_a_rank_that_was_suspended_after_its_sigterm_keeps_its_grace() -> None:
    job = running(rules(1)).send(node_messages.StopRequested(JOB, "enough", grace_s=30.0))
    assert job.of(node_messages.SignalWorkers)
    job.send(ProcessPaused(job.now_s + 10.0), at=job.now_s + 5000.0).send(DeadlineReached())
    job.send(DeadlineReached(), at=job.now_s + 19.5)
    assert job.of(node_messages.KillTree) == []
    job.send(DeadlineReached(), at=job.now_s + 1.0)
    assert job.of(node_messages.KillTree)


def test_a_signal_whose_echo_comes_after_a_suspension_kills_no_rank_and_another_one_does() -> None:
    """A scheduler signals a script and its children, and the script passes it on once it runs again."""
    signalled = node_messages.StopRequested(JOB, "got SIGTERM", int(signal.SIGTERM), of_node=True)
    job = running(rules(1)).send(signalled)
    stopped_at_s = job.now_s
    assert [each.signal for each in job.of(node_messages.SignalWorkers)] == [signal.SIGTERM]
    job.send(ProcessPaused(stopped_at_s + 0.5), at=stopped_at_s + 5000.0).send(signalled)
    assert job.of(node_messages.KillTree) == []
    job.send(signalled, at=job.now_s + 2.0)
    assert job.of(node_messages.KillTree)


def test_a_signal_that_comes_in_the_suspension_was_not_sent_after_it_so_another_one_kills() -> None:
    """It is taken before the pause is noted, which counts from when this process is known to have run last."""
    signalled = node_messages.StopRequested(JOB, "got SIGTERM", int(signal.SIGTERM), of_node=True)
    job = running(rules(1))
    ran_at_s = job.now_s
    job.send(signalled, at=ran_at_s + 61.0).send(ProcessPaused(ran_at_s), at=ran_at_s + 62.0)
    job.send(signalled, at=ran_at_s + 65.0)
    assert job.of(node_messages.KillTree)


def test_people_read_the_time_that_a_rank_has_left_without_the_pause() -> None:
    job = running(rules(1)).send(node_messages.StopRequested(JOB, "enough", grace_s=30.0))
    job.send(ProcessPaused(job.now_s + 1.0), at=job.now_s + 5001.0).send(DeadlineReached())
    assert job.said("ranks_awaited") == []
    job.send(DeadlineReached(), at=job.now_s + 1.0)  # the ranks are looked at, in vain
    job.send(DeadlineReached(), at=job.now_s + 2.0)
    assert job.said("ranks_awaited") == ["rank 0 has 26 s left to end"]


def test_a_hung_rank_that_was_suspended_after_its_signal_keeps_its_time() -> None:
    job = running(rules(1, hang_limits=LIMITS, evidence_budget_s=0.0, rank_termination_signal=int(signal.SIGTERM)))
    job.send(ClientJoined(JOB, 0, 0, LIMITS, beating(0.0)))
    read(job.send(at=20.0), beating(0.0))
    assert [each.signal for each in job.of(node_messages.SignalWorkers)] == [signal.SIGTERM]
    job.send(ProcessPaused(20.0), at=5000.0).send(DeadlineReached())
    job.send(DeadlineReached(), at=5000.0 + hang_response.ESCALATION_S - 0.5)
    assert job.actions == []
    job.send(DeadlineReached(), at=5000.0 + hang_response.ESCALATION_S + 0.1)
    assert [each.signal for each in job.of(node_messages.SignalWorkers)] == [signal.SIGKILL]


def test_a_check_of_the_node_that_was_suspended_is_not_late() -> None:
    def exclusions() -> list[NodeExcluded]:
        return [each for each in job.told if isinstance(each, NodeExcluded)]

    job = OneNode(rules(1), checks=(CheckPlan("nvhcd", 135.0, late=Health.UNHEALTHY),))
    job.send(node_messages.SpawnerReady(JOB, NOW))
    job.send(ProcessPaused(1.0), at=301.0).send(DeadlineReached())
    job.send(DeadlineReached(), at=301.0 + 133.5)
    assert exclusions() == []
    job.send(DeadlineReached(), at=301.0 + 134.5)
    [excluded] = exclusions()
    assert "has not answered within 135 s" in excluded.reason


def test_a_join_waits_as_patiently_for_a_check_as_without_the_suspension() -> None:
    disk = CheckPlan("disk", 15.0, patience_s=1.0)
    job = OneNode(rules(1), checks=(disk,)).send(node_messages.SpawnerReady(JOB, NOW))
    job.send(ProcessPaused(0.5), at=300.5).send(DeadlineReached())
    assert [each for each in job.told if isinstance(each, NodeJoined)] == []
    job.send(DeadlineReached(), at=301.1)
    assert [each for each in job.told if isinstance(each, NodeJoined)]


def test_gpu_memory_is_waited_for_as_long_as_without_the_suspension() -> None:
    job = OneNode(rules(1), memory=MemoryRules(50.0, 0, 2.0))
    job.send(node_messages.SpawnerReady(JOB, NOW)).run_cycle(0).exit(0, 0, code=1)
    job.send(node_messages.WorkersEmptied(JOB, 0))
    job.send(ProcessPaused(job.now_s + 0.5), at=job.now_s + 300.5).send(DeadlineReached())
    assert job.said("gpu_memory_unknown") == []
    job.send(node_messages.GpuMemorySeen(JOB, 0, MemoryReport(False, (GpuMemory("GPU 0", 1, 1, 1),))))
    assert job.said("gpu_memory_not_freed") == []
    assert [each.rules.timeout_s for each in job.of(node_messages.AwaitGpuMemory)] == [pytest.approx(49.5)]
    job.send(DeadlineReached(), at=job.now_s + 49.5 + gpu_reclaim.ANSWER_S)
    assert job.said("gpu_memory_unknown"), "the answer itself was due by then"


def paused_often(job: OneNode, number: int) -> OneNode:
    """Passes so many pauses of 3 s, with 2 s before each."""
    for _ in range(number):
        job.send(ProcessPaused(job.now_s + 2.0), at=job.now_s + 5.0)
    return job


def watched(limit_s: float) -> OneNode:
    limits = HangLimits(heartbeat_s=limit_s)
    return running(rules(1, hang_limits=limits)).send(ClientJoined(JOB, 0, 0, limits, beating(0.0)))


def test_a_long_pause_before_many_short_ones_blames_nobody() -> None:
    job = watched(100.0).send(ProcessPaused(8.0), at=3608.0)
    read(paused_often(job, PAUSES_MAX + 1), beating(7.0))
    assert job.of(node_messages.CollectEvidence) == []
    assert len(job.state.jobs[JOB].pauses) == PAUSES_MAX


def test_a_hang_is_found_on_a_node_that_pauses_every_few_seconds() -> None:
    job = paused_often(watched(600.0), 2_000)  # nearly three hours, and it goes on
    hung_at_s = job.now_s
    read(job, beating(hung_at_s))
    read(paused_often(job, 299), beating(hung_at_s))
    assert job.of(node_messages.CollectEvidence) == [], "it has been silent for 598 s of its own time"
    read(paused_often(job, 41), beating(hung_at_s))
    assert job.of(node_messages.CollectEvidence), "after 680 s: late, but it is found"


def test_joined_pauses_forgive_a_silence_no_less_than_they_lasted() -> None:
    chosen = random.Random(7)
    job, pauses = joined(), list[tuple[float, float]]()
    for _ in range(10 * PAUSES_MAX):
        since_s = job.now_s + chosen.choice((2.0, 4.0, 300.0))
        job.send(ProcessPaused(since_s), at=since_s + chosen.choice((3.0, 10.0, 3600.0)))
        pauses.append((since_s, job.now_s))
    kept = job.state.jobs[JOB].pauses
    assert len(kept) == PAUSES_MAX
    begun_s = [chosen.uniform(0.0, job.now_s) for _ in range(1_000)]
    assert [each for each in begun_s if moved_s(each, kept) < moved_s(each, pauses) - 1e-6] == []
    assert moved_s(0.0, kept) == pytest.approx(moved_s(0.0, pauses))


def test_pauses_without_a_turn_in_between_are_one() -> None:
    job = joined()
    for number in range(2 * PAUSES_MAX):
        job.send(ProcessPaused(10.0 * number), at=10.0 * (number + 1))
    assert job.state.jobs[JOB].pauses == ((0.0, job.now_s),)
    read(job, beating(0.0))
    assert job.of(node_messages.CollectEvidence) == []
