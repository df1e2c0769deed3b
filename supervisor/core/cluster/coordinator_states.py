"""Which states can a job have for its coordinator?

These are the states of the machine coordinator.py; those of its nodes are in node_states.py.
"""

from __future__ import annotations

import msgspec

from supervisor.core.cluster import hang_evidence, restart_policy
from supervisor.core.cluster.cluster_messages import (
    Action,
    Event,
    LeaveAsked,
    NodeFailed,
    NodeLost,
    NodeStands,
    Publish,
    StopAsked,
)
from supervisor.core.cluster.node_states import Member, Members, MemberState
from supervisor.core.facts import Assignment, Evidence, JobEvent, JobRules, RestartRules, Verdict
from supervisor.core.leader_ledger import Former, Ledger
from supervisor.core.orders import StartCycle, UseStore
from supervisor.core.rank_silence import moved_s
from supervisor.core.wrapped_calls import call_state

# --- phases --------------------------------------------------------------------------------------------------------


class Unopened(msgspec.Struct, frozen=True):
    """The job's rules are unknown; early reports wait."""

    until_s: float = 0.0  # no cycle is ordered before: if the ledger was lost, another group may still train
    early: list[Event] = msgspec.field(default_factory=list["Event"])  # grows in place


class TakingOver(msgspec.Struct, frozen=True):
    """The job had another leader. The nodes report their state; until `until_s`, none counts as lost."""

    until_s: float
    is_told: bool = False  # people know that no witness has come, without which no node may be replaced
    stands: dict[str, NodeStands] = msgspec.field(default_factory=dict[str, NodeStands])  # changes in place
    left_at_s: dict[str, float] = msgspec.field(default_factory=dict[str, float])  # when each node left the last leader
    heard_at_s: dict[str, float] = msgspec.field(default_factory=dict[str, float])  # when it heard that one last
    previous_term: int = 0  # see LeadershipTaken
    stop: StopAsked | None = None  # the first one, asked for here or on a node
    # These change in place, too.
    missing: dict[str, None] = msgspec.field(default_factory=dict[str, None])  # of the ledger's cycle, not heard yet
    beyond: dict[str, None] = msgspec.field(default_factory=dict[str, None])  # heard, and know a newer cycle
    waiting: dict[str, Event] = msgspec.field(default_factory=dict[str, Event])  # events that arrive meanwhile
    waiting_of: dict[str, int] = msgspec.field(default_factory=dict[str, int])  # how many, by node (leader_takeover.py)


class Inquiry(msgspec.Struct):
    """All nodes look at workers that linger (exit_deadlock.py). Changes in place."""

    nodes: tuple[str, ...]
    until_s: float  # a later answer may be about another moment
    awaited: dict[str, None]
    parts: list[Evidence] = msgspec.field(default_factory=list[Evidence])


class Gathering(msgspec.Struct, frozen=True):
    """The next cycle's round is open."""

    reason: str
    until_s: float  # then missing nodes are given up, and the job with them
    not_before_s: float | None = None  # back-off
    is_announced: bool = True
    last_call_until_s: float | None = None  # enough nodes have joined; others may still come until then
    orders_from_s: float | None = None  # a first start may be none if the ledger was lost: those who train come first
    tell_at_s: float | None = None  # when people are told what the round waits for
    tell_again_s: float = 0.0  # and how much later again
    is_shortage_told: bool = False  # people know that enough nodes have joined, but not the right ones
    untold: str = ""  # what was decided, and is told once the cycle is ordered, or at `untold_until_s`
    untold_until_s: float = 0.0
    untold_restarts: int = 0  # so many were decided since people were last told
    set_aside: tuple[str, ...] = ()  # nodes that have failed since, once per failure, and are not needed so far
    is_by_fault: bool = False  # ranks of the last cycle are gone, by something other than a stop
    inquiry: Inquiry | None = None


class Running(msgspec.Struct, frozen=True):
    started_at_s: float


class Stop(msgspec.Struct, frozen=True):
    """A stop by an operator or a signal (0: a command). The verdict depends on how the ranks then end."""

    signal: int
    reason: str
    grace_s: float | None = None  # None: as configured
    is_final: bool = False  # see StopAsked
    at_once: bool = False  # see StopAsked


class WindingDown(msgspec.Struct, frozen=True):
    """Every node is stopping its part. `outcome` is the verdict, or the stop that leads to one."""

    outcome: Verdict | Stop
    until_s: float
    is_stop_asked: bool = False  # perhaps while a verdict was being carried out
    at_once: bool = False  # the ranks of all nodes are killed, also those of a node that comes back
    may_be_stop_until_s: float | None = None  # a scheduler may have ended the rank: a stop asked for by then counts


class Ended(msgspec.Struct, frozen=True):
    """The verdict is final. `until_s`: the wait for nodes that do not know it ends then."""

    verdict: Verdict
    until_s: float


Phase = Unopened | TakingOver | Gathering | Running | WindingDown | Ended


_ENDS = ("until_s", "last_call_until_s", "orders_from_s", "tell_at_s", "untold_until_s", "may_be_stop_until_s")


# --- the state -----------------------------------------------------------------------------------------------------


class Hang(msgspec.Struct):
    """Ranks of the cycle hang, and are not ended yet (hang_precedence.py). Changes in place."""

    nodes: dict[str, None]  # that have found them
    until_s: float  # the hang is none if nobody has reported it as a fault until then
    later: list[NodeFailed] = msgspec.field(default_factory=list[NodeFailed])  # failures of other nodes that wait


class State(msgspec.Struct, frozen=True):
    job_id: str
    leader: str = ""  # the node that this runs on, whose rules count; "": the first node's rules count
    term: int = 0  # of an elected leader
    phase: Phase = msgspec.field(default_factory=Unopened)
    cycle: int = -1  # the last one ordered
    rules: JobRules = msgspec.field(default_factory=lambda: JobRules("", 1))
    policy: restart_policy.State = msgspec.field(
        default_factory=lambda: restart_policy.initial_state(RestartRules(), training_iteration=None)
    )
    members: Members = msgspec.field(default_factory=Members)  # changes in place
    parts: tuple[str, ...] = ()  # the nodes of the last cycle in the order of their group ranks
    processes: tuple[str, ...] = ()  # the node processes that received the order, alike (NodeFacts.process)
    vacant: tuple[str, ...] = ()  # nodes of `parts` that the cycle goes on without, until another node takes the part
    first_failure: str = ""  # the worker failure that opened the round or ended the job
    failed_on: str = ""  # the node of that failure
    failed_at_s: float = 0.0  # when it was decided on, by which time it had happened
    calls: call_state.State | None = None  # of the last cycle; changes in place
    store: UseStore | None = None  # of the last cycle, once it is served
    lost_in_call: tuple[NodeLost, ...] = ()  # nodes that the wrapped call continues without, or with a spare instead
    leaves_asked: tuple[LeaveAsked, ...] = ()  # they are answered once it is clear which nodes are there
    others_until_s: float = 0.0  # by then, a new leader has met the nodes of the last one
    evidence: hang_evidence.State = msgspec.field(default_factory=hang_evidence.initial_state)
    hang: Hang | None = None  # until it is decided
    resigned: tuple[str, ...] = ()  # nodes that have given up the lead since the last cycle (leader_resignation.py)
    recorded: Ledger | None = None  # what a later leader will know; None: there will be none
    former: Former | None = None  # the previous run, if this leader has begun another one of the same id
    epoch: int = 0  # of the last cycle (fencing_epochs.py); 0: unknown
    own_epoch: int = 0  # of the cycles that this leader orders
    leaving: tuple[str, ...] = ()  # nodes of the last cycle that may leave, whichever leader has said so


Outcome = tuple[State, tuple[Action, ...]]


def with_member(state: State, node: str, member: Member) -> State:
    state.members.put(node, member)
    return state


def takes_part(state: State, node: str) -> bool:
    """Returns whether the last cycle ordered runs with this node: not if it goes on without it, or runs another."""
    return node in state.parts and node not in state.vacant


def active_nodes(state: State) -> tuple[str, ...]:
    """Returns all nodes that take part in the last cycle ordered, in the order of their group ranks."""
    return tuple(node for node in state.parts if node not in state.vacant)


def with_parts(state: State, parts: tuple[str, ...]) -> State:
    """Gives these nodes the parts of the newest cycle from now on."""
    known = (state.members.get(node) for node in parts)
    processes = tuple(each.facts.process if each is not None else "" for each in known)
    return msgspec.structs.replace(state, parts=parts, processes=processes)


def with_failure(state: State, failed: NodeFailed, now_s: float, *, ends_job: bool = False) -> State:
    """Notes what is decided on now; in a round that another failure has opened, that one stays the first.

    If this failure ends the job, the verdict names it: what came before it is looked for from there.
    """
    is_named = ends_job and failed.first_failure
    if state.first_failure and not isinstance(state.phase, Running) and not is_named:
        return state
    return msgspec.structs.replace(state, first_failure=failed.first_failure, failed_on=failed.node, failed_at_s=now_s)


def without(state: State, event: NodeLost) -> State:
    """Marks the node as lost. What it had reported about its last cycle stands.

    It is silent no more: whatever is heard of it next comes by another connection, and nobody says NodeHeard. A request
    to leave was that of its process.
    """
    known = state.members[event.node]
    lost = msgspec.structs.replace(known, state=MemberState.LOST, is_silent=False, comes_again=event.comes_again)
    asked = tuple(each for each in state.leaves_asked if each.node != event.node)
    return with_member(msgspec.structs.replace(state, leaves_asked=asked), event.node, lost)


def after_pause(state: State, since_s: float, now_s: float) -> State:
    """Moves the ends of waits for nodes and ranks that may have been suspended together with this process.

    The pause began after `since_s`, so an end that had passed by then stays, as does a back-off. The pause does not
    count in the age of a cycle, or of an iteration of a wrapped call: one that fails at once made no progress.
    """
    by_s, ends = now_s - since_s, {name: getattr(state.phase, name, None) for name in _ENDS}
    later = {name: end_s + by_s for name, end_s in ends.items() if end_s is not None and end_s > since_s}
    if isinstance(state.evidence, hang_evidence.Taking):
        state.evidence.until_s += by_s
    if state.calls is not None:
        call_state.after_pause(state.calls, since_s, now_s)
    if state.hang is not None:
        state.hang.until_s += by_s
    if isinstance(state.phase, Running):
        later["started_at_s"] = moved_s(state.phase.started_at_s, [(since_s, now_s)])
    others_until_s = state.others_until_s + (by_s if state.others_until_s > since_s else 0.0)
    return msgspec.structs.replace(
        state, phase=msgspec.structs.replace(state.phase, **later), others_until_s=others_until_s
    )


def start_order(state: State, group_rank: int, reason: str) -> StartCycle:
    """Returns the order for the node with this part in the cycle decided last."""
    local_world_size = state.rules.local_world_size
    part = Assignment(
        cycle=state.cycle,
        group_rank=group_rank,
        group_world_size=len(state.parts),
        world_size=len(state.parts) * local_world_size,
        first_rank=group_rank * local_world_size,
        epoch=state.epoch,
    )
    return StartCycle(part, reason, state.policy.used)


def said(state: State, kind: str, reason: str) -> Publish:
    return Publish(JobEvent(kind, reason, max(state.cycle, 0)))
