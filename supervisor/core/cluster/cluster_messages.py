"""What do nodes report to the coordinator of a job?

These records are the vocabulary of coordinator.py; core/orders.py has its orders.
"""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.announcements import Announcement
from supervisor.core.facts import Assignment, Cause, Evidence, JobEvent, JobRules, Verdict
from supervisor.core.leader_ledger import Former, Ledger
from supervisor.core.orders import Order
from supervisor.core.wrapped_calls.call_messages import Told


class MemberState(enum.StrEnum):
    """The state of a node in the job, as its coordinator sees it."""

    OPENED = "opened"  # has the job; its spawner is being started
    JOINED = "joined"  # ready for the next cycle
    RUNNING = "running"  # its workers run, or are being stopped after an announcement
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # has reported a fault; its workers are being stopped
    DOWN = "down"  # nothing runs there, and it has no spawner
    STOPPED = "stopped"  # nothing runs there any more: the job ends
    INFORMED = "informed"  # it knows the verdict
    LOST = "lost"  # no longer heard; what it ran has ended
    REFUSED = "refused"  # it has no part in the job, and knows that


class JobOpened(msgspec.Struct, frozen=True):
    """The job was submitted on this node, whose spawner is being started."""

    node: str
    rules: JobRules
    training_iteration: int | None = None  # in the checkpoint file at the start; None: unknown


class NodeJoined(msgspec.Struct, frozen=True):
    """A node's spawner is ready and its workers are stopped: it can take part in the next cycle."""

    node: str
    cycle: int  # the last cycle it ran; -1 before the first
    cause: Cause | None = None  # of the first failure among its workers


class NodeFailed(msgspec.Struct, frozen=True):
    """A fault took a node's group down (or would: the node has not stopped its other workers yet)."""

    node: str
    cycle: int
    reason: str
    training_iteration: int | None = None  # from the checkpoint file, read when the report is sent
    restart_allowed: bool = True  # False: no restart whatever budget and policy allow (the workload asked to end)
    exit_code: int = 1
    first_failure: str = ""  # the part of `reason` that names a worker; another failure may have caused it
    may_be_stop: bool = False  # a worker was ended by SIGTERM or the like: a stop of the whole job may follow at once


class NodeDown(msgspec.Struct, frozen=True):
    """Nothing of the job runs on this node, which has no spawner; it joins again once a round is announced."""

    node: str
    cycle: int  # the last cycle it was ordered to run


class NodeSucceeded(msgspec.Struct, frozen=True):
    """All local ranks of the cycle have exited 0."""

    node: str
    cycle: int
    lost: tuple[int, ...] = ()  # ranks that a wrapped call has continued without


class NodeStopped(msgspec.Struct, frozen=True):
    """Nothing of the job runs on the node any more (answer to WindDown)."""

    node: str
    all_succeeded: bool
    cause: Cause | None = None


class NodeLost(msgspec.Struct, frozen=True):
    """A node has been silent for so long that it has ended its workers, or is dead."""

    node: str
    reason: str
    comes_again: bool = False  # its next process is connected, and soon says how it stands


class NodeSilent(msgspec.Struct, frozen=True):
    """The leader hears nothing from a node, for now. If that lasts, the node is lost. Never sent between nodes."""

    node: str


class NodeHeard(msgspec.Struct, frozen=True):
    """A silent node is heard again. Never sent between nodes."""

    node: str


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
    """The messages of a node's ranks about their wrapped call, in order."""

    node: str
    cycle: int
    told: tuple[Told, ...]


class StacksWanted(msgspec.Struct, frozen=True):
    """A node has found hung ranks and waits for the evidence before it ends them."""

    node: str
    cycle: int
    accused: tuple[int, ...]  # global ranks
    budget_s: float
    noticed: str = ""  # the sentence about the first of them; "": this concerns a wrapped call


class StacksTaken(msgspec.Struct, frozen=True):
    node: str
    cycle: int
    evidence: Evidence


class WorkersLinger(msgspec.Struct, frozen=True):
    """Some workers of the node have not ended by the SIGTERM of a restart."""

    node: str
    cycle: int


class NodeExcluded(msgspec.Struct, frozen=True):
    """A rank has asked that this node take no part in later cycles."""

    node: str
    reason: str


class NodeCordoned(msgspec.Struct, frozen=True):
    """An operator has cordoned the node, so it takes part in no later cycle; `reason` "": uncordoned."""

    node: str
    reason: str


class StopAsked(msgspec.Struct, frozen=True):
    """An operator, or a signal to a launcher, ends the job. `signal` 0: a command."""

    reason: str
    signal: int
    grace_s: float | None = None  # how long the ranks may take; None: as configured
    is_final: bool = False  # an operator's command: no scheduler may start it again
    at_once: bool = False  # the second signal to its node, or SIGKILL: the ranks of all nodes are killed


class LeaveAsked(msgspec.Struct, frozen=True):
    """A node is to leave the job, which goes on without it."""

    node: str
    reason: str
    signal: int = 0  # that its launcher got; 0: none
    with_ranks: bool = False  # also if it holds ranks of the cycle, which other nodes then take over
    or_stop: bool = False  # if it can't leave, the job is stopped
    grace_s: float | None = None  # then; see StopAsked


class RestartAsked(msgspec.Struct, frozen=True):
    """An operator asks for a new cycle, which uses no restart of the budget."""

    reason: str


class JobForbidden(msgspec.Struct, frozen=True):
    """The leader's own node has learned that no cycle may follow. Never sent between nodes."""

    reason: str
    exit_code: int | None = None  # None: the one that tells a scheduler not to start the job again


class NodeStands(msgspec.Struct, frozen=True):
    """A node's report to a new leader (answer to Introduce): all that this leader knows about it."""

    node: str
    rules: JobRules
    state: MemberState
    cycle: int  # the last one it was ordered to run; -1 before the first
    assignment: Assignment | None = None  # its part in that cycle
    restarts_used: int = 0  # according to the newest order
    reason: str = ""
    first_failure: str = ""
    restart_allowed: bool = True
    lost: tuple[int, ...] = ()  # ranks that a wrapped call has gone on without
    all_succeeded: bool = False  # as it stopped for good
    store_host: str = ""  # where it serves the store of the cycle
    store_port: int = 0
    left_ago_s: float = 0.0  # time since its last message to the previous leader; 0: just now, or unknown
    left: str = ""  # the node of that leader; "": unknown
    met_term: int = 0  # of the first leader that this process met; 0: none, or unknown
    newest_term: int = 0  # of which this process knows
    stop_reason: str = ""  # of a stop asked for there, which has stopped its workers; "": none
    stop_signal: int = 0  # 0: a command
    stop_is_final: bool = False  # see StopAsked
    leave: LeaveAsked | None = None  # asked for there; None: the node stays
    cordoned: str = ""  # see NodeCordoned
    excluded: str = ""  # see NodeExcluded
    left_term: int = 0  # of the leader that it has left; 0: unknown
    heard_cycle: int = -1  # of that leader's last heartbeat that counted (leader_heartbeats.py); -1: there was none
    heard_ago_s: float = 0.0  # time since then
    verdict: Verdict | None = None  # how the job ends, as a leader has told this node
    stop_grace_s: float | None = None  # see StopAsked
    stop_at_once: bool = False  # see StopAsked


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = (
    JobOpened | NodeJoined | NodeFailed | NodeDown | NodeSucceeded | NodeStopped | NodeLost | VerdictTaken
    | StoreServed | CallReport | StacksWanted | StacksTaken | WorkersLinger | NodeExcluded | NodeCordoned | StopAsked
    | RestartAsked | LeaveAsked | JobForbidden | NodeSilent | NodeHeard | NodeStands | DeadlineReached
)  # fmt: skip


class LeadershipTaken(msgspec.Struct, frozen=True):
    """This node leads the job from now on. The ledger holds the decisions of earlier leaders."""

    term: int
    ledger: Ledger
    former: Former | None = None  # an earlier run of the job, if some of its nodes may not know its end
    others_may_train: bool = True  # although the ledger does not say so: it may be lost
    previous_term: int = 0  # of the lead just before, if the backend has surely lost nothing since; 0: unknown


class LeadershipLost(msgspec.Struct, frozen=True):
    """Another node leads, or may lead soon, so this one sends no further orders."""

    reason: str


Leadership = LeadershipTaken | LeadershipLost


class Reported(msgspec.Struct, frozen=True):
    """A report on its way, with the job that it is about."""

    job_id: str
    report: Event | Leadership


class Send(msgspec.Struct, frozen=True):
    """Sends an order to one node through the peers, to this node as to any other."""

    node: str
    order: Order


class Publish(msgspec.Struct, frozen=True):
    event: JobEvent


class Record(msgspec.Struct, frozen=True):
    """Records the ledger before any later order is sent; the next leader begins with it."""

    ledger: Ledger


Action = Send | Publish | Record | Announcement
