"""Which states can a job have for its coordinator, and which can each of its nodes have?

The states of the machine coordinator.py; how the job ends on all nodes is in endings.py.
"""

from __future__ import annotations

import enum

import msgspec

from supervisor.core.calls import call_state
from supervisor.core.cluster import evidence, restart_policy
from supervisor.core.cluster.messages import Action, Event, Publish
from supervisor.core.facts import Cause, JobEvent, JobRules, RestartRules, Verdict


class MemberState(enum.StrEnum):
    OPENED = "opened"  # has the job; its spawner is being started
    JOINED = "joined"  # ready for the next cycle
    RUNNING = "running"  # its workers run, or are being stopped after an announcement
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # has reported a fault; its workers are being stopped
    DOWN = "down"  # nothing runs there, and it has no spawner
    STOPPED = "stopped"  # nothing runs there any more: the job ends
    INFORMED = "informed"  # it knows the verdict
    LOST = "lost"  # not heard of any more; what it ran has ended


# Of these nobody waits for anything as the job ends.
GONE = frozenset({MemberState.INFORMED, MemberState.LOST})

# Something of the last cycle may still run there: no other node begins the next one beside it.
BUSY = frozenset({MemberState.RUNNING, MemberState.SUCCEEDED, MemberState.FAILED})


class Member(msgspec.Struct, frozen=True):
    state: MemberState
    cycle: int = -1  # the last one that it took part in
    excluded: str = ""  # why it takes part in no later cycle
    lost: tuple[int, ...] = ()  # ranks that a wrapped call has gone on without
    cause: Cause | None = None  # of the failure that came first on it, as it stopped
    all_succeeded: bool = False  # as it stopped for good


# --- phases --------------------------------------------------------------------------------------------------------


class Unopened(msgspec.Struct, frozen=True):
    """Nothing is known of the job's rules; reports that came first wait."""

    early: tuple[Event, ...] = ()


class Gathering(msgspec.Struct, frozen=True):
    """The next cycle's round is open."""

    reason: str
    until_s: float  # then the nodes that are missing are given up, and the job with them
    not_before_s: float | None = None  # back-off
    is_announced: bool = True


class Running(msgspec.Struct, frozen=True):
    started_at_s: float


class Stop(msgspec.Struct, frozen=True):
    """What a person or a signal (0: a command) wants. The verdict depends on how the ranks then end."""

    signal: int
    reason: str


class WindingDown(msgspec.Struct, frozen=True):
    """Every node stops what it runs. `outcome` is the verdict, or the stop that leads to one."""

    outcome: Verdict | Stop
    until_s: float
    asked_at_s: float | None = None  # when the last stop was asked for


class Ended(msgspec.Struct, frozen=True):
    """The verdict is final; `until_s`: then nobody is waited for any more who does not know it."""

    verdict: Verdict
    until_s: float


Phase = Unopened | Gathering | Running | WindingDown | Ended


class State(msgspec.Struct, frozen=True):
    job_id: str
    phase: Phase = msgspec.field(default_factory=Unopened)
    cycle: int = -1  # the last one ordered
    rules: JobRules = msgspec.field(default_factory=lambda: JobRules("", 1))
    policy: restart_policy.State = msgspec.field(
        default_factory=lambda: restart_policy.initial_state(RestartRules(), training_iteration=None)
    )
    members: dict[str, Member] = msgspec.field(default_factory=dict[str, Member])
    parts: tuple[str, ...] = ()  # the nodes of the last cycle in the order of their group ranks
    first_failure: str = ""  # the worker's that opened the round or brought the end
    calls: call_state.State | None = None  # of the last cycle; changes in place
    evidence: evidence.State = msgspec.field(default_factory=evidence.initial_state)


Outcome = tuple[State, tuple[Action, ...]]


def with_member(state: State, node: str, member: Member) -> State:
    return msgspec.structs.replace(state, members=state.members | {node: member})


def without(state: State, node: str) -> State:
    """The node is lost. What it had reported of its last cycle stands."""
    known = state.members[node]
    return with_member(state, node, msgspec.structs.replace(known, state=MemberState.LOST))


def said(state: State, kind: str, reason: str) -> Publish:
    return Publish(JobEvent(kind, reason, max(state.cycle, 0)))
