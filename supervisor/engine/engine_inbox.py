"""Which events does the engine take, and which of them must keep their order?

Edges post here, and the loop takes. So whatever reports to the engine can be made before the engine is.
"""

from __future__ import annotations

from supervisor.core.cluster import cluster_messages
from supervisor.core.node import node_messages
from supervisor.engine.fair_queue import FairQueue

EngineEvent = node_messages.Event | cluster_messages.Reported


class EngineInbox(FairQueue[EngineEvent]):
    """The inbox of a supervisor. Only for the event loop's thread."""

    def __init__(self) -> None:
        super().__init__(_job_of)


def _job_of(event: EngineEvent) -> str:
    """Returns the lane: events of one job keep their order; those of different jobs are taken in turn."""
    match event:
        case cluster_messages.Reported(job_id):  # first, since a leader has thousands of these at once
            return job_id
        case node_messages.JobSubmitted(rules):
            return rules.job_id
        case node_messages.ProcessPaused() | node_messages.DeadlineReached():
            return ""
        case _:
            return event.job_id
