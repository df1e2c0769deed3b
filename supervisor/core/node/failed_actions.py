"""What does it mean for a job if an action could not be carried out?

Any error outside the machines while one job's action is carried out becomes events of that job, only here: a full disk
is a failed spawn, a broken link is a lost spawner, never the end of the supervisor.
"""

from __future__ import annotations

from typing import assert_never

from supervisor.core.facts import Evidence
from supervisor.core.gpu_memory import MemoryReport
from supervisor.core.node.node_messages import (
    Action,
    AwaitGpuMemory,
    CheckNode,
    CollectEvidence,
    EndSpawner,
    Event,
    EvidenceCollected,
    FinishJob,
    ForkAhead,
    GpuMemorySeen,
    JobAbandoned,
    KillSpawner,
    KillTree,
    LookAtRanks,
    MoveFence,
    NodeChecked,
    PrepareStore,
    Publish,
    RanksLookedAt,
    ReadProgress,
    ReconnectRanks,
    RespawnWorkers,
    SignalWorkers,
    SpawnerBroken,
    SpawnerLost,
    SpawnFailed,
    SpawnWorkers,
    StartSpawner,
    StoreFailed,
    TellCoordinator,
    TellRanks,
)
from supervisor.core.node_check_facts import Health, HealthFinding


def events_of(action: Action, reason: str, *, local_world_size: int) -> tuple[Event, ...]:
    """Returns the events that follow from a failed action. `reason` is the sentence for people."""
    job_id = action.job_id
    match action:
        case StartSpawner(number=number):
            return (SpawnerLost(job_id, number, reason),)
        case PrepareStore(cycle=cycle):
            return (StoreFailed(job_id, cycle, reason),)
        case SpawnWorkers(assignment=assignment):
            ranks = range(local_world_size)
            return tuple(SpawnFailed(job_id, assignment.cycle, each, reason, 1) for each in ranks)
        case RespawnWorkers(cycle=cycle, local_ranks=local_ranks):
            return tuple(SpawnFailed(job_id, cycle, each, reason, 1) for each in local_ranks)
        case SignalWorkers() | KillTree() | EndSpawner() | TellRanks() | ReconnectRanks():
            return (SpawnerBroken(job_id, reason),)
        case CollectEvidence(cycle=cycle):
            return (EvidenceCollected(job_id, cycle, Evidence(notes=(reason,))),)
        case LookAtRanks(cycle=cycle):
            return (RanksLookedAt(job_id, cycle),)
        case CheckNode(check=check, number=number):
            return (NodeChecked(job_id, check, number, (HealthFinding(check, Health.UNANSWERED, reason),)),)
        case AwaitGpuMemory(cycle=cycle):
            return (GpuMemorySeen(job_id, cycle, MemoryReport(is_free=False, unknown=reason)),)
        case TellCoordinator():
            return (JobAbandoned(job_id, reason),)  # Else the coordinator would wait for the report.
        case ForkAhead() | MoveFence() | KillSpawner() | ReadProgress() | Publish() | FinishJob():
            # Nothing was lost, or another machine's deadline covers it.
            return ()
        case _:
            assert_never(action)
