"""How does each action fail, and what does the job learn?"""

from __future__ import annotations

import pytest

from supervisor.core.cluster.cluster_messages import StopAsked
from supervisor.core.facts import Assignment, Evidence, JobEvent, JobState, Verdict
from supervisor.core.gpu_memory import MemoryReport, MemoryRules
from supervisor.core.node import node_messages
from supervisor.core.node.failed_actions import events_of
from tests.core.one_node import JOB, NOW, OneNode, rules, running

FULL = "cannot write /logs: no space left on device"


@pytest.mark.parametrize(
    ("action", "events"),
    [
        (node_messages.StartSpawner(JOB, 3), [node_messages.SpawnerLost(JOB, 3, FULL)]),
        (node_messages.PrepareStore(JOB, 2), [node_messages.StoreFailed(JOB, 2, FULL)]),
        (
            node_messages.SpawnWorkers(JOB, Assignment(2), "h", 1),
            [node_messages.SpawnFailed(JOB, 2, each, FULL, 1) for each in (0, 1)],
        ),
        (node_messages.RespawnWorkers(JOB, 2, (1,)), [node_messages.SpawnFailed(JOB, 2, 1, FULL, 1)]),
        (node_messages.SignalWorkers(JOB, 2, 15), [node_messages.SpawnerBroken(JOB, FULL)]),
        (node_messages.KillTree(JOB, 2), [node_messages.SpawnerBroken(JOB, FULL)]),
        (
            node_messages.CollectEvidence(JOB, 2, 0.25),
            [node_messages.EvidenceCollected(JOB, 2, Evidence(notes=(FULL,)))],
        ),
        (node_messages.TellCoordinator(JOB, StopAsked("x", 0)), [node_messages.JobAbandoned(JOB, FULL)]),
        (
            node_messages.AwaitGpuMemory(JOB, 2, MemoryRules(50.0, 0, 2.0)),
            [node_messages.GpuMemorySeen(JOB, 2, MemoryReport(is_free=False, unknown=FULL))],
        ),
        (node_messages.Publish(JOB, JobEvent("x", "y")), []),
        (node_messages.FinishJob(JOB, Verdict(JobState.FAILED, 1, "x")), []),
    ],
)
def test_what_the_job_hears(action: node_messages.Action, events: list[node_messages.Event]) -> None:
    assert list(events_of(action, FULL, local_world_size=2)) == events


@pytest.mark.parametrize("kind", [node_messages.StartSpawner, node_messages.PrepareStore, node_messages.SpawnWorkers])
def test_a_job_whose_start_fails_at_any_action_ends_with_the_reason(kind: type[node_messages.Action]) -> None:
    job = OneNode(rules(2, max_restarts=0))
    failures: list[node_messages.Event] = []
    for step in (None, node_messages.SpawnerReady(JOB, NOW), node_messages.StoreReady(JOB, 0, "h", 1)):
        if step is not None:
            job.send(step)
        for action in job.of(kind):
            failures += events_of(action, FULL, local_world_size=2)
        if failures:
            break
    job.send(*failures)
    job.send(node_messages.WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert (verdict.exit_code, FULL in verdict.reason) == (1, True)


def test_a_stop_that_cannot_be_sent_ends_the_spawner_with_its_tree() -> None:
    job = running(rules(2)).send(node_messages.StopRequested(JOB, "stopped by kim"))
    (signal,) = job.of(node_messages.SignalWorkers)
    job.send(*events_of(signal, FULL, local_world_size=2))
    assert job.of(node_messages.KillSpawner) == [node_messages.KillSpawner(JOB, FULL)]
    job.send(node_messages.SpawnerLost(JOB, NOW, "it was killed by SIGKILL"))
    assert job.verdict() == Verdict(JobState.STOPPED, 93, "stopped by kim")
