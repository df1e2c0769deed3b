"""How does each action fail, and what does the job learn?"""

from __future__ import annotations

import pytest

from supervisor.core.cluster.messages import StopAsked
from supervisor.core.facts import Assignment, Evidence, JobEvent, JobState, Verdict
from supervisor.core.gpu_memory import MemoryReport, MemoryRules
from supervisor.core.node import messages
from supervisor.core.node.failed_actions import events_of
from tests.core.one_node import JOB, NOW, OneNode, rules, running

FULL = "cannot write /logs: no space left on device"


@pytest.mark.parametrize(
    ("action", "events"),
    [
        (messages.StartSpawner(JOB, 3), [messages.SpawnerLost(JOB, 3, FULL)]),
        (messages.PrepareStore(JOB, 2), [messages.StoreFailed(JOB, 2, FULL)]),
        (
            messages.SpawnWorkers(JOB, Assignment(2), "h", 1),
            [messages.SpawnFailed(JOB, 2, each, FULL, 1) for each in (0, 1)],
        ),
        (messages.RespawnWorkers(JOB, 2, (1,)), [messages.SpawnFailed(JOB, 2, 1, FULL, 1)]),
        (messages.SignalWorkers(JOB, 2, 15), [messages.SpawnerBroken(JOB, FULL)]),
        (messages.KillTree(JOB, 2), [messages.SpawnerBroken(JOB, FULL)]),
        (
            messages.CollectEvidence(JOB, 2, 0.25),
            [messages.EvidenceCollected(JOB, 2, Evidence(notes=(FULL,)))],
        ),
        (messages.TellCoordinator(JOB, StopAsked("x", 0)), [messages.JobAbandoned(JOB, FULL)]),
        (
            messages.AwaitGpuMemory(JOB, 2, MemoryRules(50.0, 0, 2.0)),
            [messages.GpuMemorySeen(JOB, 2, MemoryReport(is_free=False, unknown=FULL))],
        ),
        (messages.Publish(JOB, JobEvent("x", "y")), []),
        (messages.FinishJob(JOB, Verdict(JobState.FAILED, 1, "x")), []),
    ],
)
def test_what_the_job_hears(action: messages.Action, events: list[messages.Event]) -> None:
    assert list(events_of(action, FULL, local_world_size=2)) == events


@pytest.mark.parametrize("kind", [messages.StartSpawner, messages.PrepareStore, messages.SpawnWorkers])
def test_a_job_whose_start_fails_at_any_action_ends_with_the_reason(kind: type[messages.Action]) -> None:
    job = OneNode(rules(2, max_restarts=0))
    failures: list[messages.Event] = []
    for step in (None, messages.SpawnerReady(JOB, NOW), messages.StoreReady(JOB, 0, "h", 1)):
        if step is not None:
            job.send(step)
        for action in job.of(kind):
            failures += events_of(action, FULL, local_world_size=2)
        if failures:
            break
    job.send(*failures)
    job.send(messages.WorkersEmptied(JOB, 0))
    verdict = job.verdict()
    assert verdict is not None
    assert (verdict.exit_code, FULL in verdict.reason) == (1, True)


def test_a_stop_that_cannot_be_sent_ends_the_spawner_with_its_tree() -> None:
    job = running(rules(2)).send(messages.StopRequested(JOB, "stopped by kim"))
    (signal,) = job.of(messages.SignalWorkers)
    job.send(*events_of(signal, FULL, local_world_size=2))
    assert job.of(messages.KillSpawner) == [messages.KillSpawner(JOB, FULL)]
    job.send(messages.SpawnerLost(JOB, NOW, "it was killed by SIGKILL"))
    assert job.verdict() == Verdict(JobState.STOPPED, 93, "stopped by kim")
