"""What nodes report to the coordinator of a job: the vocabulary of coordinator.py, one for each job.

What it orders is in core/orders.py.
"""

from __future__ import annotations

import msgspec

from supervisor.core.calls.words import Told
from supervisor.core.facts import Cause, Evidence, JobEvent, JobRules
from supervisor.core.orders import Order


class JobOpened(msgspec.Struct, frozen=True):
    """The job was submitted on this node, whose spawner is being started."""

    node: str
    rules: JobRules
    training_iteration: int | None = None  # in the checkpoint file at the start; None: unknown


class NodeJoined(msgspec.Struct, frozen=True):
    """A node's spawner is ready and its workers are stopped: it can take part in the next cycle."""

    node: str
    cycle: int  # the last cycle it ran; -1 before the first
    cause: Cause | None = None  # of the failure that came first among its workers


class NodeFailed(msgspec.Struct, frozen=True):
    """A fault took a node's group down (or would: the node has not stopped its other workers yet)."""

    node: str
    cycle: int
    reason: str
    training_iteration: int | None = None  # from the checkpoint file, read as the report is sent
    restart_allowed: bool = True  # False: budget and policy are not asked (shutdown requested by the workload)
    exit_code: int = 1
    first_failure: str = ""  # the part of `reason` that names a worker; its end may be the echo of another's


class NodeDown(msgspec.Struct, frozen=True):
    """Nothing of the job runs on a node that has no spawner; it joins again once a round is announced."""

    node: str
    cycle: int  # the last cycle it was ordered


class NodeSucceeded(msgspec.Struct, frozen=True):
    """All local ranks of the cycle have exited 0."""

    node: str
    cycle: int
    lost: tuple[int, ...] = ()  # ranks that a wrapped call has gone on without


class NodeStopped(msgspec.Struct, frozen=True):
    """Nothing of the job runs on the node any more (answer to WindDown)."""

    node: str
    all_succeeded: bool
    cause: Cause | None = None


class NodeLost(msgspec.Struct, frozen=True):
    """Nothing was heard of a node for so long that it has ended its workers, or is dead."""

    node: str
    reason: str


class VerdictTaken(msgspec.Struct, frozen=True):
    """The node knows how the job ended (answer to Conclude)."""

    node: str


class StoreServed(msgspec.Struct, frozen=True):
    """The node of group rank 0 serves the store of the cycle here."""

    node: str
    cycle: int
    host: str
    port: int


class CallReport(msgspec.Struct, frozen=True):
    """What the ranks of a node have to say of their wrapped call, in order."""

    node: str
    cycle: int
    told: tuple[Told, ...]


class StacksWanted(msgspec.Struct, frozen=True):
    """A node has found ranks that hang and waits for the evidence before it ends them."""

    node: str
    cycle: int
    accused: tuple[int, ...]  # global ranks
    budget_s: float
    noticed: str = ""  # the sentence about the first of them; "": this is about a wrapped call


class StacksTaken(msgspec.Struct, frozen=True):
    node: str
    cycle: int
    evidence: Evidence


class NodeExcluded(msgspec.Struct, frozen=True):
    """A rank asked that this node takes no part in later cycles."""

    node: str
    reason: str


class NodeCordoned(msgspec.Struct, frozen=True):
    """A person wants that this node takes part in no later cycle; `reason` "": that it takes part again."""

    node: str
    reason: str


class StopAsked(msgspec.Struct, frozen=True):
    """A person, or a signal to a launcher, ends the job. signal 0: a command."""

    reason: str
    signal: int


class RestartAsked(msgspec.Struct, frozen=True):
    """A person asks for a new cycle; no unit of the budget is used."""

    reason: str


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = (
    JobOpened | NodeJoined | NodeFailed | NodeDown | NodeSucceeded | NodeStopped | NodeLost | VerdictTaken
    | StoreServed | CallReport | StacksWanted | StacksTaken | NodeExcluded | NodeCordoned | StopAsked | RestartAsked
    | DeadlineReached
)  # fmt: skip


class Reported(msgspec.Struct, frozen=True):
    """A report on its way, with the job that it is about."""

    job_id: str
    report: Event


class Send(msgspec.Struct, frozen=True):
    """An order to one node. It leaves through the peers, to this node as to any other."""

    node: str
    order: Order


class Publish(msgspec.Struct, frozen=True):
    event: JobEvent


Action = Send | Publish
