"""When does a round of a job close, and which nodes run the cycle that it orders, in which order?

A part of the machine coordinator.py, which opens rounds after a fault.
"""

from __future__ import annotations

import msgspec

from supervisor.core import orders
from supervisor.core.cluster import endings, evidence, wrapped_call
from supervisor.core.cluster.coordinator_states import (
    BUSY,
    Gathering,
    MemberState,
    Outcome,
    Running,
    State,
)
from supervisor.core.cluster.messages import Action, Send
from supervisor.core.facts import Assignment, JobRules, JobState, Verdict

GATHER_S = 900.0  # from the end of a back-off and the last grace of the workers to the last node that joins


def gathering(
    rules: JobRules, reason: str, now_s: float, *, delay_s: float = 0.0, is_announced: bool = True
) -> Gathering:
    until_s = now_s + delay_s + rules.workers_stop_timeout_s + GATHER_S
    return Gathering(reason, until_s, now_s + delay_s if delay_s else None, is_announced)


def announce(state: State, reason: str) -> tuple[Action, ...]:
    again = orders.JoinAgain(state.cycle + 1, reason)
    return tuple(Send(node, again) for node, each in state.members.items() if each.state is not MemberState.LOST)


def close_round(state: State, now_s: float) -> Outcome:
    """Orders the cycle once enough nodes have joined, nothing of the last one is left, and the delay is over."""
    if not isinstance(state.phase, Gathering):
        return state, ()
    min_nodes = state.policy.rules.min_nodes
    lost = excluded_verdict(state)
    if lost is not None:
        return endings.wind_down(state, lost, now_s)
    if state.phase.not_before_s is not None or not state.phase.is_announced:
        return state, ()
    ready = sorted(
        node for node, each in state.members.items() if each.state is MemberState.JOINED and not each.excluded
    )
    if len(ready) < min_nodes or any(each.state in BUSY for each in state.members.values()):
        return state, ()
    found = endings.root_cause_found(state)
    state, parts = _order_cycle(state, tuple(ready[:min_nodes]), state.phase.reason, now_s)
    return state, (*found, *parts)


def _order_cycle(state: State, chosen: tuple[str, ...], reason: str, now_s: float) -> Outcome:
    cycle, local_world_size = state.cycle + 1, state.rules.local_world_size
    world_size = len(chosen) * local_world_size
    parts = tuple(
        Send(
            node,
            orders.StartCycle(
                Assignment(
                    cycle=cycle,
                    group_rank=group_rank,
                    group_world_size=len(chosen),
                    world_size=world_size,
                    first_rank=group_rank * local_world_size,
                ),
                reason,
                state.policy.used,
            ),
        )
        for group_rank, node in enumerate(chosen)
    )
    members = {node: msgspec.structs.replace(each, cause=None) for node, each in state.members.items()}
    for node in chosen:
        members[node] = msgspec.structs.replace(members[node], state=MemberState.RUNNING, cycle=cycle)
    state = msgspec.structs.replace(
        state,
        phase=Running(now_s),
        cycle=cycle,
        members=members,
        parts=chosen,
        first_failure="",
        calls=wrapped_call.initial_state(world_size),
        evidence=evidence.initial_state(),
    )
    return state, parts


def excluded_verdict(state: State) -> Verdict | None:
    """The end of a job that an excluded node leaves with too few; None while there are enough."""
    left = sum(not each.excluded for each in state.members.values())
    why = "; ".join(each.excluded for each in state.members.values() if each.excluded)
    if not why or left >= state.policy.rules.min_nodes:
        return None
    reason = f"{why}; {left} nodes are left where {state.policy.rules.min_nodes} are needed"
    return Verdict(JobState.FAILED, 1, reason)
