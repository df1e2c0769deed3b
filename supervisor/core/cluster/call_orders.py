"""Which node gets which part of a decision about a wrapped call?

A rank belongs to the node that runs its part of the cycle; decisions about the whole call go to all nodes.
"""

from __future__ import annotations

from typing import assert_never

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import Action, Publish, Send
from supervisor.core.cluster.coordinator_states import State
from supervisor.core.cluster.node_states import UNHEARD
from supervisor.core.facts import JobEvent
from supervisor.core.wrapped_calls import call_actions


def carry(state: State, decision: call_actions.Tell | call_actions.EndCall | call_actions.Say) -> tuple[Action, ...]:
    match decision:
        case call_actions.Tell(members, order):
            return tuple(
                Send(node, orders.TellMembers(state.cycle, of_node, order))
                for node, of_node in _by_node(state, members).items()
            )
        case call_actions.EndCall(call, stands, reason):
            settle = orders.SettleCall(state.cycle, call, stands, reason)
            return tuple(Send(node, settle) for node in state.parts if _is_there(state, node))
        case call_actions.Say(kind, reason, at, rank, details):
            return (Publish(JobEvent(kind, reason, max(state.cycle, 0), rank, details, at)),)
        case _:
            assert_never(decision)


def replace(state: State, decision: call_actions.Replace) -> tuple[Action, ...]:
    """Orders new processes for lost ranks; their restart of the budget is already used."""
    used, most = state.policy.used, state.policy.rules.max_restarts
    text = f"{decision.reason}; a new process takes its place, restarts used {used} of {most}"
    at = state.calls.iteration if state.calls is not None else 0
    said = Publish(JobEvent("rank_replaced", text, max(state.cycle, 0), iteration=at))
    lost = tuple(member for _, member in decision.lost)
    return said, *(
        Send(node, orders.ReplaceRanks(state.cycle, members, text)) for node, members in _by_node(state, lost).items()
    )


def _is_there(state: State, node: str) -> bool:
    known = state.members.get(node)
    return known is None or known.state not in UNHEARD


def _by_node(state: State, members: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Groups members by node, in their given order."""
    parts: dict[str, tuple[int, ...]] = {}
    for member in members:
        node = state.parts[member // state.rules.local_world_size]
        parts[node] = (*parts.get(node, ()), member)
    return parts
