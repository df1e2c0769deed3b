"""A job on GPUs: a restart whose memory is late, and an end that waits for no memory."""

from __future__ import annotations

import msgspec

from supervisor.core.facts import JobState
from supervisor.core.gpu_memory import GpuMemory, MemoryReport, MemoryRules
from supervisor.core.node import node, node_messages, spawner_deadlines
from supervisor.core.node.gpu_reclaim import FIRST_S
from supervisor.core.node.node_messages import AwaitGpuMemory, GpuMemorySeen, SpawnWorkers, StartSpawner, WorkersEmptied
from supervisor.core.node_check_facts import Health
from tests.core.one_node import JOB, NOW, OneNode, rules

RULES = MemoryRules(50.0, 0, 2.0)
FREE = MemoryReport(True, (GpuMemory("GPU 0", 1, 0, 1),))


def running(local_world_size: int = 1) -> OneNode:
    job = OneNode(rules(local_world_size), memory=RULES)
    return job.send(node_messages.SpawnerReady(JOB, NOW)).run_cycle(0)


def waiting() -> OneNode:
    job = running()
    job.exit(0, 0, code=1).send(WorkersEmptied(JOB, 0))
    assert job.actions == [AwaitGpuMemory(JOB, 0, msgspec.structs.replace(RULES, timeout_s=FIRST_S))]
    return job


def test_the_first_cycle_waits_for_no_memory() -> None:
    assert running().view().state is JobState.RUNNING


def test_a_restart_waits_until_the_memory_is_free() -> None:
    job = waiting()
    assert job.view().state is JobState.RESTARTING
    assert job.view().cycle == 0
    assert job.said("workers_stopped") == []
    job.send(GpuMemorySeen(JOB, 0, FREE))
    assert job.view().cycle == 1
    assert job.said("gpu_memory_free")
    job.run_cycle(1)
    assert job.view().state is JobState.RUNNING


def test_the_spawner_owes_nothing_while_memory_is_waited_for() -> None:
    job = waiting()
    job.pass_to(job.now_s + spawner_deadlines.EMPTY_S)
    assert job.said("spawner_lost") == []
    job.send(GpuMemorySeen(JOB, 0, FREE))
    assert job.view().cycle == 1


def test_a_wait_without_an_answer_is_bounded() -> None:
    job = waiting()
    deadline_s = node.next_deadline_s(job.state)
    assert deadline_s is not None
    job.pass_to(deadline_s + 1)
    assert job.view().cycle == 1


def test_a_stop_ends_the_wait() -> None:
    job = waiting()
    job.send(node_messages.StopRequested(JOB, "enough", 0))
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.state is JobState.STOPPED
    assert job.send(GpuMemorySeen(JOB, 0, FREE)).of(SpawnWorkers) == []


def test_workers_of_a_new_spawner_wait_for_the_memory_of_the_last_ones() -> None:
    job = running()
    job.send(node_messages.SpawnerLost(JOB, NOW, "it was killed"))
    assert job.of(AwaitGpuMemory) == [AwaitGpuMemory(JOB, 0, msgspec.structs.replace(RULES, timeout_s=FIRST_S))]
    assert len(job.of(StartSpawner)) == 1, "it loads while the memory is waited for"
    job.send(node_messages.SpawnerReady(JOB, NOW))
    assert job.view().cycle == 0
    job.send(GpuMemorySeen(JOB, 0, FREE))
    assert job.view().cycle == 1
    job.run_cycle(1)
    assert job.view().state is JobState.RUNNING


def test_a_successor_of_the_spawner_that_is_ready_meanwhile_does_not_replace_what_is_held() -> None:
    job = waiting()
    job.send(node_messages.SpawnerReady(JOB, NOW))
    assert job.view().cycle == 0
    job.send(GpuMemorySeen(JOB, 0, FREE))
    assert job.view().cycle == 1
    job.run_cycle(1)
    assert job.view().state is JobState.RUNNING


def test_a_spawner_that_is_lost_meanwhile_does_not_end_the_wait() -> None:
    job = waiting()
    job.send(node_messages.SpawnerLost(JOB, NOW, "it was killed"))
    assert job.view().state is JobState.RESTARTING
    assert job.of(AwaitGpuMemory) == [], "it is being looked at"
    job.send(node_messages.SpawnerReady(JOB, NOW))
    assert job.view().cycle == 0
    job.send(GpuMemorySeen(JOB, 0, FREE)).run_cycle(1)
    assert job.view().state is JobState.RUNNING
    assert job.send(GpuMemorySeen(JOB, 0, FREE)).actions == []
    assert job.view().state is JobState.RUNNING


def test_a_second_loss_while_memory_is_waited_for_leaves_nothing_of_the_first() -> None:
    job = running()
    job.send(node_messages.SpawnerLost(JOB, NOW, "it was killed"), node_messages.SpawnerReady(JOB, NOW))
    job.send(node_messages.SpawnerLost(JOB, NOW, "killed again"))
    job.send(GpuMemorySeen(JOB, 0, FREE))
    assert job.view().cycle == 0, "the one that was ready is gone"
    job.send(node_messages.SpawnerReady(JOB, NOW))
    assert job.view().cycle == 1


def test_a_spawner_that_is_ready_owes_nothing_while_memory_is_waited_for() -> None:
    job = running()
    job.send(node_messages.SpawnerLost(JOB, NOW, "it was killed"), node_messages.SpawnerReady(JOB, NOW))
    watch = job.state.jobs[JOB].spawner
    assert isinstance(watch, spawner_deadlines.Serving)
    assert watch.debts == ()


def test_a_stop_ends_the_wait_for_a_new_spawner() -> None:
    job = running()
    job.send(node_messages.SpawnerLost(JOB, NOW, "it was killed"), node_messages.SpawnerReady(JOB, NOW))
    job.send(node_messages.StopRequested(JOB, "enough", 0))
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.state is JobState.STOPPED
    assert job.send(GpuMemorySeen(JOB, 0, FREE)).of(SpawnWorkers) == []


def test_memory_that_is_not_freed_makes_the_node_suspect_in_status() -> None:
    job = waiting()
    busy = MemoryReport(False, (GpuMemory("GPU 0", 1, 1, 1),))
    job.send(GpuMemorySeen(JOB, 0, busy), at=job.now_s + 50)
    assert job.view().cycle == 1, "it stays in the job"
    assert [each.finding.health for each in job.view().checks] == [Health.SUSPECT]
    assert len(job.said("node_suspect")) == 1


def test_the_end_of_a_job_waits_for_no_memory() -> None:
    job = running()
    job.exit(0, 0, code=0)
    job.send(WorkersEmptied(JOB, 0))
    assert job.of(AwaitGpuMemory) == []
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.state is JobState.SUCCEEDED
