"""What do people read about a job on several nodes: its state, and which part each node has in it?

A view of the coordinator's state. Node states: active, spare, starting, ready (for the round that is open), stopping,
down, cordoned, excluded, leaving, left, refused, stopped and lost.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core.cluster.coordinator_states import (
    Ended,
    Gathering,
    Running,
    State,
    TakingOver,
    Unopened,
    WindingDown,
)
from supervisor.core.cluster.missing_nodes import names
from supervisor.core.cluster.node_states import ABSENTEE, BUSY, Member, MemberState
from supervisor.core.facts import JobState

_KEPT_OUT = (MemberState.JOINED, MemberState.DOWN)  # nodes that would take part if they were not cordoned


class RosterNode(msgspec.Struct, frozen=True):
    name: str
    state: str
    group_rank: int | None  # None: takes part in no cycle
    reason: str = ""


class Roster(msgspec.Struct, frozen=True):
    state: JobState
    reason: str  # "": the nodes know best
    cycle: int  # the last one ordered; -1 before the first
    nodes: tuple[RosterNode, ...]


def roster(state: State) -> Roster:
    job_state, reason = _job_state(state)
    ranks = {name: number for number, name in enumerate(state.parts) if name not in state.vacant}
    nodes = tuple(
        RosterNode(name, *_node_state(state, member, ranks.get(name)))
        for name, member in sorted(state.members.items(), key=lambda each: (ranks.get(each[0], len(ranks)), each[0]))
        if not name.startswith(ABSENTEE)
    )
    return Roster(job_state, reason, state.cycle, nodes)


def _job_state(state: State) -> tuple[JobState, str]:
    match state.phase:
        case Unopened():
            return JobState.PENDING, ""
        case Gathering(reason):
            ready = sum(each.is_ready for each in state.members.values())
            text = f"{reason}; {ready} of {state.policy.rules.min_nodes} nodes have joined for cycle {state.cycle + 1}"
            kept_out = [name for name, each in state.members.items() if each.cordoned and each.state in _KEPT_OUT]
            text += f", and cordoned: {names(kept_out)}" if kept_out else ""
            if state.phase.orders_from_s is not None:
                text += (
                    "; a first start waits a few seconds for nodes that may train unknown to etcd, because nothing "
                    "shows yet that etcd has kept its data for long enough"
                )
            return JobState.RENDEZVOUS if state.cycle < 0 else JobState.RESTARTING, text
        case Running():
            return JobState.RUNNING, ""
        case TakingOver():
            return JobState.RUNNING, _taking_over(state, state.phase)
        case WindingDown(outcome):
            return JobState.STOPPING, outcome.reason
        case Ended(verdict):
            return verdict.state, verdict.reason
        case _:
            assert_never(state.phase)


def _taking_over(state: State, phase: TakingOver) -> str:
    text = "another node leads the job now, and asks all others for their state"
    had = state.recorded.witnesses if state.recorded is not None else ()
    if phase.is_told and had and phase.stands.keys().isdisjoint(had):
        text += f"; it waits for one of the nodes that the job had: {names(had)}"
    return text


def _node_state(state: State, member: Member, group_rank: int | None) -> tuple[str, int | None, str]:
    runs = isinstance(state.phase, Running)
    taking_part = group_rank if runs else None
    if member.state is MemberState.LOST:
        return "lost", None, ""
    if member.excluded:
        return "excluded", taking_part, member.excluded
    if member.leaves:
        return ("left", None, member.leaves) if member.state is MemberState.REFUSED else (
            "leaving", taking_part, member.leaves
        )  # fmt: skip
    if taking_part is not None:
        return "active", taking_part, f"takes part in no later cycle: {member.cordoned}" if member.cordoned else ""
    if member.cordoned:
        return "cordoned", None, member.cordoned
    match member.state:
        case MemberState.OPENED:
            return "starting", None, ""
        case MemberState.JOINED:
            return "spare" if runs else "ready", None, ""
        case each if each in BUSY:
            return "stopping", None, ""
        case MemberState.DOWN:
            return "down", None, "it has no spawner at this moment"
        case MemberState.REFUSED:
            return "refused", None, member.refused
        case _:
            return "stopped", None, ""
