"""Which tags did version 0.1 write, before there was a table of tags, and which ones are they today?

It wrote the module and the name of the class. Remove this file two releases after 0.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

# module as it was then -> where the tags begin today, and the classes as they were called then
_MODULES = {
    "config.attribution": ("", "Attribution StopAction"),
    "config.health_checks": ("", "HealthChecks"),
    "config.job_logs": ("", "JobLogs LogServer"),
    "config.job_spec": ("", "Entry JobSpec Nodes Redirect SpawnMethod"),
    "core.calls.call_state": (
        "call",
        """
        Entering Exchange Idle Iteration LastCall Member Newcomer Over Past Rebuilding Replacement
        Restarting Resting Running State Unfit
    """,
    ),
    "core.calls.words": (
        "call",
        """
        Barrier BarrierArrive BeginIteration Committed Entered ExchangeValue Exchanged FaultRecord
        FaultsReported Interrupt Interruption IterationBegan Leaving Lost RankFault Restart Stage Started
        Told
    """,
    ),
    "core.cluster.coordinator_states": (
        "coordinator",
        """
        Ended Gathering Running State Stop TakingOver Unopened WindingDown
    """,
    ),
    "core.cluster.evidence": ("evidence", "Quiet Taking"),
    "core.cluster.membership": ("", "Member Members"),
    "core.cluster.messages": (
        "cluster",
        """
        CallReport DeadlineReached JobForbidden JobOpened LeadershipLost LeadershipTaken MemberState
        NodeCordoned NodeDown NodeExcluded NodeFailed NodeJoined NodeLost NodeStands NodeStopped
        NodeSucceeded Reported RestartAsked StacksTaken StacksWanted StopAsked StoreServed VerdictTaken
    """,
    ),
    "core.cluster.restart_policy": ("restart_policy", "State"),
    "core.correspondence": ("session", "Candidate"),
    "core.facts": (
        "",
        """
        Assignment Cause Evidence HangLimits JobEvent JobRules JobState NodeFacts Progress RendezvousRules
        RestartPolicyName RestartRules StackGroup Verdict WatchMode WorkerExit
    """,
    ),
    "core.gpu_memory": ("gpu", "Holder MemoryReport MemoryRules"),
    "core.job_phases": (
        "job",
        """
        AwaitingStore Closing Down Ended Finished Leave Pending Rejoin Rendezvous Running StartNext Starting
        State Stopped Stopping Store
    """,
    ),
    "core.ledger": ("ledger", "Former"),
    "core.node.call_watch": ("call_watch", "Confirming Examining Gone Idle Reading Terminating Watching"),
    "core.node.fitness": ("fitness", "Round State"),
    "core.node.gpu_reclaim": ("gpu_reclaim", "State Waiting"),
    "core.node.hang_response": ("hang_response", "Ending Examining HungRank Over Quiet"),
    "core.node.job_machines": ("", "JobMachines"),
    "core.node.local_call_messages": ("local_call_messages", "Place Rank State"),
    "core.node.messages": (
        "node",
        """
        AwaitGpuMemory CheckNode ClientJoined ClientLeft CollectEvidence ControlRequested DeadlineReached
        EndSpawner EvidenceCollected FenceMoved FinishJob ForkAhead GpuMemorySeen JobAbandoned JobSubmitted
        KillSpawner KillTree LimitsCalculated MoveFence NodeChecked Ordered PrepareStore ProgressRead
        Publish RankSaid ReadProgress ReconnectRanks RespawnWorkers RestartRequested SignalWorkers
        SpawnFailed SpawnWorkers SpawnerBroken SpawnerLost SpawnerReady StartSpawner StopRequested
        StoreFailed StoreReady SupervisorReturned TellCoordinator TellRanks WorkerEndSeen WorkerExited
        WorkerSpawned WorkersEmptied
    """,
    ),
    "core.node.rank_monitor": ("rank_monitor", "Gone Hung Reading Silent Watching"),
    "core.node.spawner_watch": ("spawner_watch", "Absent Debt Killing Serving"),
    "core.node.worker_group": (
        "worker_group",
        """
        Done Empty Faulted Killing Prepared Running Starting Terminating
    """,
    ),
    "core.node_health": ("node_health", "CheckPlan CheckView Finding Health HealthCheckPolicy"),
    "core.orders": (
        "order",
        """
        ActOnHang Conclude Introduce JoinAgain ReplaceRanks SettleCall StandBack StartCycle TakeStacks
        TellMembers UseStore WindDown
    """,
    ),
    "core.workers": ("workers", "Excuse Worker"),
    "engine.job_book": ("record", "CycleRecord RecordedCycle Shown"),
    "ports": ("record", "RankReport RecordedEvent SectionReport"),
}

_RENAMED = {
    "core.calls.fruitless:Fruitless": "call.without_progress",
    "core.calls.words:CallCompleted": "call.completed",
    "core.calls.words:CallEnter": "call.enter",
    "core.calls.words:CallLeave": "call.leave",
    "core.calls.words:CallRefused": "call.refused",
    "core.calls.words:CallSettings": "call.settings",
    "core.calls.words:CallUnderway": "call.underway",
    "core.correspondence:Correspondence": "session.sessions",
    "core.correspondence:Letters": "session.session",
    "core.correspondence:NodeLetters": "session.node",
    "core.facts:CallWatch": "call_watch.limits",
    "core.gpu_memory:GpuMemory": "gpu.memory",
    "core.gpu_places:GpuPlace": "gpu.place",
    "core.ledger:Ledger": "ledger",
    "core.node.check_standing:Standing": "node_check.state",
    "core.process_facts:ChildProcess": "process.child",
    "core.process_facts:Frame": "process.stack_frame",
    "core.process_facts:ProcessFacts": "process",
    "core.process_facts:ProcessState": "process.state",
    "core.process_facts:RankFacts": "process.rank",
    "engine.keepsakes:Keepsake": "job_snapshot",
    "engine.keepsakes:PartedKeepsake": "job_snapshot.in_parts",
}


def _regular() -> Iterator[tuple[str, str]]:
    for module, (prefix, classes) in _MODULES.items():
        for name in classes.split():
            words = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
            yield f"{module}:{name}", f"{prefix}.{words}".lstrip(".")


EARLIER: Mapping[str, str] = {**dict(_regular()), **_RENAMED}
