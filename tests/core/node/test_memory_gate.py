"""A job on GPUs, over a restart whose memory is late, and to an end that waits for no memory."""

from __future__ import annotations

import msgspec

from supervisor.core.facts import JobState
from supervisor.core.gpu_memory import GpuMemory, MemoryReport, MemoryRules
from supervisor.core.node import messages, node, spawner_watch
from supervisor.core.node.gpu_reclaim import FIRST_S
from supervisor.core.node.messages import AwaitGpuMemory, GpuMemorySeen, SpawnWorkers, WorkersEmptied
from tests.core.one_node import JOB, NOW, OneNode, rules

RULES = MemoryRules(50.0, 0, 2.0)
FREE = MemoryReport(True, (GpuMemory("GPU 0", 1, 0, 1),))


def running(local_world_size: int = 1) -> OneNode:
    job = OneNode(rules(local_world_size), memory=RULES)
    return job.send(messages.SpawnerReady(JOB, NOW)).run_cycle(0)


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
    job.pass_to(job.now_s + spawner_watch.EMPTY_S)
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
    job.send(messages.StopRequested(JOB, "enough", 0))
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.state is JobState.STOPPED
    assert job.send(GpuMemorySeen(JOB, 0, FREE)).of(SpawnWorkers) == []


def test_a_spawner_that_is_lost_meanwhile_ends_the_wait() -> None:
    job = waiting()
    job.send(messages.SpawnerLost(JOB, NOW, "it was killed"))
    assert job.view().state is JobState.RESTARTING
    job.send(messages.SpawnerReady(JOB, NOW)).run_cycle(1)
    assert job.view().state is JobState.RUNNING
    assert job.send(GpuMemorySeen(JOB, 0, FREE)).actions == []
    assert job.view().state is JobState.RUNNING


def test_the_end_of_a_job_waits_for_no_memory() -> None:
    job = running()
    job.exit(0, 0, code=0)
    job.send(WorkersEmptied(JOB, 0))
    assert job.of(AwaitGpuMemory) == []
    verdict = job.verdict()
    assert verdict is not None
    assert verdict.state is JobState.SUCCEEDED
