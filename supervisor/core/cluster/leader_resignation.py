"""Does a leader hear so few nodes that another one should lead?

A part of the machine coordinator.py, for elected leaders. A leader that hears too few nodes for a cycle, although the
others would be enough for one, may itself be the node that is cut off. So it gives up the lead, for a node that hears
more. Where the others are really gone, that changes nothing: the ledger names who has given up the lead since the last
cycle was ordered, each does so once, and the job then waits for its nodes under one leader.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import Action, NodeStands, Send
from supervisor.core.cluster.coordinator_states import Ended, Gathering, Outcome, State, WindingDown, said
from supervisor.core.cluster.node_states import UNHEARD, MemberState

RESIGNATIONS_MAX = 3  # in a row


def is_outranked(state: State, stands: NodeStands) -> bool:
    """Returns whether a later leader is known, as once the backend has lost its data: its terms then begin again."""
    newest = max(stands.newest_term, state.recorded.term if state.recorded is not None else 0)
    return newest > state.term > 0 and not isinstance(state.phase, WindingDown | Ended)


def outranked(state: State) -> Outcome:
    """Gives up the lead for a node that knows the newest term, and leads with a later one."""
    text = f"node {state.leader} gives up the lead: its term, {state.term}, is older than one that another node knows"
    return state, (said(state, "leader_resigned", text), Send(state.leader, orders.Resign(text)))


def after(state: State, actions: tuple[Action, ...]) -> Outcome:
    """Adds the resignation to what a step has decided, if a round is open that this leader can't close."""
    members, needed = state.members, state.policy.rules.min_nodes
    if state.recorded is None or not isinstance(state.phase, Gathering) or len(members) <= needed:
        return state, actions
    if len(members) - members.count(*UNHEARD) >= needed:
        return state, actions
    able = [name for name, each in members.items() if each.state is not MemberState.REFUSED and each.may_take_part]
    heard = sum(members[name].state is not MemberState.LOST for name in able)
    state, more = resigned(state, able, heard=heard, needed=needed)
    return state, (*actions, *more)


def resigned(state: State, able: Collection[str], *, heard: int, needed: int) -> Outcome:
    """Gives up the lead if the `able` nodes are enough for a cycle without this one, and those it hears are not."""
    others = len(able) - (state.leader in able)
    if heard >= needed or others < needed:
        return state, ()
    return _give_up(
        state, f"it hears {heard} of {len(able)} nodes, and a cycle needs {needed}; a node that hears more of them"
    )


def unheard(state: State, names: str) -> Outcome:
    """Gives up the lead: this node hears none of those with these names, and begins nothing before it has met one."""
    return _give_up(state, f"it hears none of the nodes that the job had ({names}); a node that hears one of them")


def leaving(state: State, reason: str) -> Outcome:
    """Gives up the lead: this node leaves the job."""
    return _give_up(state, f"it leaves the job ({reason}), and another node")


def _give_up(state: State, why_and_who: str) -> Outcome:
    if state.leader in state.resigned or len(state.resigned) >= RESIGNATIONS_MAX:
        return state, ()
    text = f"node {state.leader} gives up the lead: {why_and_who} leads next"
    state = msgspec.structs.replace(state, resigned=(*state.resigned, state.leader))
    return state, (said(state, "leader_resigned", text), Send(state.leader, orders.Resign(text)))
