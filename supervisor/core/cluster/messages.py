"""What nodes tell the coordinator of a job, and what it orders: the vocabulary of coordinator.py, one for each job."""

from __future__ import annotations

import msgspec

from supervisor.core.calls.words import Told, ToRank
from supervisor.core.facts import Assignment, JobEvent, RestartRules, Verdict


class JobOpened(msgspec.Struct, frozen=True):
    rules: RestartRules
    local_world_size: int
    iteration: int | None = None  # training iteration in the checkpoint file at the start; None: unknown


class NodeJoined(msgspec.Struct, frozen=True):
    """A node's spawner is ready and its workers are stopped: it can take part in the next cycle."""

    node: str
    cycle: int  # the last cycle it ran; -1 before the first


class NodeFailed(msgspec.Struct, frozen=True):
    """A fault took a node's group down (or would: the node has not stopped its other workers yet)."""

    node: str
    cycle: int
    reason: str
    iteration: int | None = None  # from the checkpoint file; the node's engine reads it as it sends the report
    restart_allowed: bool = True  # False: budget and policy are not asked (shutdown requested by the workload)
    exit_code: int = 1


class NodeSucceeded(msgspec.Struct, frozen=True):
    """All local ranks of the cycle have exited 0."""

    node: str
    cycle: int
    lost: tuple[int, ...] = ()  # ranks that a wrapped call has gone on without


class CallReport(msgspec.Struct, frozen=True):
    """What the ranks of a node have to say of their wrapped call, in order."""

    node: str
    cycle: int
    told: tuple[Told, ...]


class NodeExcluded(msgspec.Struct, frozen=True):
    """A rank asked that this node takes no part in later cycles."""

    node: str
    reason: str


class StopOrdered(msgspec.Struct, frozen=True):
    """A person or a signal ends the job with this verdict once the workers are down."""

    verdict: Verdict


class RestartOrdered(msgspec.Struct, frozen=True):
    """A person asks for a new cycle; no unit of the budget is used."""

    reason: str


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = (
    JobOpened | NodeJoined | NodeFailed | NodeSucceeded | CallReport | NodeExcluded | StopOrdered | RestartOrdered
    | DeadlineReached
)  # fmt: skip


class OrderCycle(msgspec.Struct, frozen=True):
    """The rendezvous is complete: `node` runs this part of the cycle."""

    node: str
    assignment: Assignment
    reason: str


class AnnounceRestart(msgspec.Struct, frozen=True):
    """All nodes stop their workers and join again."""

    next_cycle: int
    reason: str


class OrderCall(msgspec.Struct, frozen=True):
    """To these ranks of the cycle, on whichever nodes they are."""

    cycle: int
    members: tuple[int, ...]
    order: ToRank


class OrderRespawn(msgspec.Struct, frozen=True):
    """New processes for these ranks, each on its node."""

    cycle: int
    members: tuple[int, ...]
    reason: str


class EndCall(msgspec.Struct, frozen=True):
    cycle: int
    call: int
    stands: bool
    reason: str


class ReachVerdict(msgspec.Struct, frozen=True):
    verdict: Verdict


class Publish(msgspec.Struct, frozen=True):
    event: JobEvent


Action = OrderCycle | AnnounceRestart | OrderCall | OrderRespawn | EndCall | ReachVerdict | Publish
