"""Does a wrapped call continue after the loss of a whole node, and which node then runs the lost ranks?

A part of the machine coordinator.py. The lost node's part of the cycle is vacant until a spare takes it, with the same
ranks. Without a spare, the survivors continue with fewer ranks, and a node that joins later takes the part.
"""

from __future__ import annotations

import msgspec

from supervisor.core.cluster import active_and_spare_nodes, restart_policy, wrapped_call
from supervisor.core.cluster.cluster_messages import NodeLost, Send
from supervisor.core.cluster.coordinator_states import Outcome, Running, State, start_order, with_member, with_parts
from supervisor.core.cluster.node_states import BUSY, MemberState
from supervisor.core.cluster.wrapped_call import RanksGone, RanksOffered
from supervisor.core.facts import RestartPolicyName
from supervisor.core.wrapped_calls.call_actions import EndCall, Replace


def ranks_of(state: State, node: str) -> tuple[int, ...]:
    """Returns the cycle's ranks that the node runs."""
    size = state.rules.local_world_size
    return tuple(rank for place, each in enumerate(state.parts) if each == node for rank in _ranks_at(place, size))


def _ranks_at(place: int, size: int) -> range:
    return range(place * size, (place + 1) * size)


def is_survived(state: State, node: str) -> bool:
    """Returns whether a call is under way that ranks of other nodes continue.

    If a number of healthy nodes is required, they must be enough, or a spare must complete them; else the restart
    policy decides.
    """
    calls = state.calls
    if not isinstance(state.phase, Running) or calls is None or not calls.is_open:
        return False
    lost = set(ranks_of(state, node))
    if not lost or not calls.members.keys() - lost:
        return False
    rules = state.policy.rules
    healthy = sum(each != node and state.members[each].state is MemberState.RUNNING for each in state.parts)
    if rules.policy is not RestartPolicyName.MIN_HEALTHY or healthy >= rules.min_nodes:
        return True
    return find_spare(state, instead_of=node) is not None and restart_policy.units_left(state.policy) > 0


def is_waiting(state: State, node: str) -> bool:
    """Returns whether the node runs new processes only, none of which takes part in the call yet."""
    calls = state.calls
    if calls is None or not calls.is_open:
        return False
    ranks = ranks_of(state, node)
    return bool(ranks) and all(rank in calls.newcomers or rank in calls.now.replacing for rank in ranks)


def gone(state: State, node: str, reason: str, *, may_come_again: bool = False) -> RanksGone:
    """Returns the event for the call."""
    return RanksGone(node, ranks_of(state, node), f"was lost: {reason}", may_come_again)


def note(state: State, event: NodeLost) -> State:
    """Notes a loss that the call deals with: it counts only if the call does not succeed without the node."""
    return vacate(msgspec.structs.replace(state, lost_in_call=(*state.lost_in_call, event)), event.node)


def vacate(state: State, node: str) -> State:
    """Notes that the cycle goes on without the node, also under the next leader."""
    if node in state.vacant or node not in state.parts:
        return state
    return msgspec.structs.replace(state, vacant=(*state.vacant, node))


def inherit(state: State) -> State:
    """Takes over the vacant parts from the previous leader. The call that is under way goes on without them."""
    losses = tuple(
        NodeLost(node, f"the cycle had gone on without node {node} when the leader changed") for node in state.vacant
    )
    lost = {rank: f"was lost: {each.reason}" for each in losses for rank in ranks_of(state, each.node)}
    calls = wrapped_call.initial_state(len(state.parts) * state.rules.local_world_size, lost=lost)
    return msgspec.structs.replace(state, calls=calls, lost_in_call=losses)


def settle(state: State, ended: EndCall) -> tuple[State, NodeLost | None]:
    """Ends the losses of a call. Returns the first loss that counts, for the restart policy; None: none."""
    lost, state = state.lost_in_call, msgspec.structs.replace(state, lost_in_call=())
    return state, lost[0] if lost and not ended.stands else None


def lost_ranks(state: State) -> tuple[int, ...]:
    """Returns the ranks that the cycle has gone on without, as the verdict on a success names them.

    A wrapped call has lost them, or a fault was tolerated. Which of the two, a new leader cannot know.
    """
    vacant = {rank for node in state.vacant for rank in ranks_of(state, node)}
    of_nodes = {rank for each in state.members.values() if each.cycle == state.cycle for rank in each.lost}
    return tuple(sorted(vacant | of_nodes))


# --- who takes the place --------------------------------------------------------------------------------------------


def find_spare(state: State, *, instead_of: str) -> str | None:
    """Returns the first spare in placement order. With segments, it must be in the lost node's NVLink domain.

    A process that has run its part of this cycle would ignore another order for it. The next process of a node whose
    own part is vacant takes that part only: no node has two.
    """
    if not state.members.ready:
        return None
    lost = state.members.get(instead_of)
    domain = lost.facts.domain if lost is not None else ""
    ready = {
        node: each.facts
        for node, each in state.members.items()
        if each.is_ready and each.cycle < state.cycle and (node == instead_of or node not in state.parts)
    }
    if state.rules.rendezvous.segment is not None:
        ready = {node: facts for node, facts in ready.items() if facts.domain == domain}
    return next(iter(active_and_spare_nodes.ordered(ready)), None)


def offer(state: State) -> RanksOffered | None:
    """Returns the ranks of a vacant part, for a node that has joined; None if none is vacant."""
    if not isinstance(state.phase, Running) or not state.members.ready or state.members.busy >= len(state.parts):
        return None
    for place, node in enumerate(state.parts):
        spare = find_spare(state, instead_of=node) if _is_vacant(state, node) else None
        if spare is not None:
            return RanksOffered(spare, tuple(_ranks_at(place, state.rules.local_world_size)))
    return None


def _is_vacant(state: State, node: str) -> bool:
    known = state.members.get(node)
    return known is None or known.cycle != state.cycle or known.state not in BUSY


def fill(state: State, decision: Replace) -> Outcome:
    """Has spares begin the vacant parts whose ranks need new processes."""
    size = state.rules.local_world_size
    places = sorted({rank // size for _, rank in decision.lost})
    started: list[tuple[int, str]] = []
    for place in places:
        spare = find_spare(state, instead_of=state.parts[place])
        if not _is_vacant(state, state.parts[place]) or spare is None:
            continue
        parts = (*state.parts[:place], spare, *state.parts[place + 1 :])
        vacant = tuple(each for each in state.vacant if each != state.parts[place])
        store = None if place == 0 else state.store
        state = msgspec.structs.replace(with_parts(state, parts), vacant=vacant, store=store)
        begun = msgspec.structs.replace(
            state.members[spare], state=MemberState.RUNNING, cycle=state.cycle, cause=None, lost=()
        )
        state = with_member(state, spare, begun)
        started.append((place, spare))
    actions: list[Send] = []
    for place, spare in started:
        order = start_order(state, place, decision.reason)
        actions.append(Send(spare, msgspec.structs.replace(order, is_running=True)))
        if place != 0 and state.store is not None:
            actions.append(Send(spare, state.store))
    return state, tuple(actions)


def on_living(state: State, decision: Replace) -> Replace:
    """Returns the part of the decision that concerns running nodes."""
    size = state.rules.local_world_size
    lost = tuple(each for each in decision.lost if not _is_vacant(state, state.parts[each[1] // size]))
    return msgspec.structs.replace(decision, lost=lost)
