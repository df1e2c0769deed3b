"""How is the failure of an action reported?

An error that somebody can act on has its own text. A system error gets its file and a hint. Anything else is a defect
of ours: people get one sentence, the supervisor's log gets the traceback.
"""

from __future__ import annotations

import logging

from supervisor.core.node import node_messages
from supervisor.errors import HoldfastError

_PURPOSE: dict[type[node_messages.Action], str] = {
    node_messages.StartSpawner: "start the spawner",
    node_messages.PrepareStore: "prepare the store",
    node_messages.ForkAhead: "fork workers ahead",
    node_messages.MoveFence: "tell the spawner how long the workers may run",
    node_messages.SpawnWorkers: "start the workers",
    node_messages.RespawnWorkers: "replace lost ranks",
    node_messages.TellRanks: "pass an order on to the ranks",
    node_messages.ReconnectRanks: "have the ranks connect again",
    node_messages.SignalWorkers: "signal the workers",
    node_messages.KillTree: "end what is left of the cycle",
    node_messages.EndSpawner: "end the spawner",
    node_messages.KillSpawner: "kill the spawner",
    node_messages.ReadProgress: "read a rank's progress",
    node_messages.CollectEvidence: "take stacks",
    node_messages.LookAtRanks: "look at the ranks",
    node_messages.CheckNode: "check the node",
    node_messages.AwaitGpuMemory: "wait for GPU memory",
    node_messages.Publish: "publish an event",
    node_messages.TellCoordinator: "report to the coordinator",
    node_messages.FinishJob: "finish the job",
}

_log = logging.getLogger("holdfast")


def failure_text(action: node_messages.Action, error: Exception) -> str:
    """Returns the sentence for people; logs a defect of ours with its traceback."""
    return failure_sentence(_PURPOSE[type(action)], action.job_id, error)


def failure_sentence(purpose: str, job_id: str, error: Exception) -> str:
    """Returns the same for other work done for a job. `purpose` completes "cannot …"."""
    match error:
        case HoldfastError():
            return str(error)
        case OSError():
            where = f" at {error.filename}" if error.filename else ""
            why = error.strerror or str(error)
            return f"cannot {purpose}: {why}{where}; check space, permissions and limits there"
        case _:
            _log.error("cannot %s of job %s", purpose, job_id, exc_info=error)
            what = f"{type(error).__name__}: {error}"
            return f"cannot {purpose}: {what}; this is a defect of Holdfast, its log has the traceback"
