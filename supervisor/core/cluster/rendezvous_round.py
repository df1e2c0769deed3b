"""When does a round of a job close, and what happens to one that does not?

A part of the machine coordinator.py, which opens rounds after a fault. A round closes once enough nodes have joined,
nothing of the last cycle is left, and the last call is over. active_and_spare_nodes.py decides which nodes take part.
"""

from __future__ import annotations

from collections import Counter
from typing import assert_never

import msgspec

from supervisor.core import orders
from supervisor.core.cluster import hang_evidence, job_termination, wrapped_call
from supervisor.core.cluster.active_and_spare_nodes import Placement, place
from supervisor.core.cluster.cluster_messages import (
    Action,
    Event,
    LeaveAsked,
    NodeCordoned,
    NodeDown,
    NodeExcluded,
    NodeFailed,
    NodeHeard,
    NodeLost,
    NodeSilent,
    NodeStands,
    Send,
)
from supervisor.core.cluster.coordinator_states import (
    Gathering,
    Outcome,
    Phase,
    Running,
    State,
    Unopened,
    said,
    start_order,
    with_member,
    with_parts,
)
from supervisor.core.cluster.missing_nodes import counted, missing_sentence, names
from supervisor.core.cluster.node_states import UNHEARD, Member, MemberState
from supervisor.core.facts import JobRules, JobState, Verdict
from supervisor.core.fence_times import LEFT_S
from supervisor.core.stop_verdict import STOP_FOLLOWS_S

_LACKING = (NodeFailed, NodeDown, NodeLost, NodeExcluded, NodeCordoned, LeaveAsked)  # a round may lack a node then
TELL_S = 10.0  # after so long, people learn what a round waits for; then after twice as long, and so on


def gathering(
    rules: JobRules,
    reason: str,
    now_s: float,
    *,
    delay_s: float = 0.0,
    is_announced: bool = True,
    is_first: bool = False,
    before: Phase | None = None,
    may_be_stop: bool = False,
) -> Gathering:
    """Opens a round. `is_first`: no workers have to stop before the nodes can join.

    `before`: the phase that a fault ends; `may_be_stop`: that fault may be a stop, so people are told later. A new
    round carries over from the open one what it does with the ranks of the last cycle.
    """
    earlier = before if isinstance(before, Gathering) else None
    has_fault = isinstance(before, Running) or (earlier is not None and earlier.is_by_fault)
    is_by_fault = has_fault and not may_be_stop
    untold_restarts = (earlier.untold_restarts if earlier is not None else 0) + 1 if may_be_stop else 0
    begins_s = now_s + delay_s + (0.0 if is_first else rules.workers_stop_timeout_s)
    return Gathering(
        reason,
        until_s=begins_s + rules.rendezvous.join_timeout_s,
        not_before_s=now_s + delay_s if delay_s else None,
        is_announced=is_announced,
        orders_from_s=earlier.orders_from_s if earlier is not None else None,
        tell_at_s=begins_s + TELL_S if _has_others(rules) else None,
        tell_again_s=2 * TELL_S,
        untold=reason if may_be_stop else "",
        untold_until_s=now_s + STOP_FOLLOWS_S if may_be_stop else 0.0,
        untold_restarts=untold_restarts,
        is_by_fault=is_by_fault,
        inquiry=earlier.inquiry if earlier is not None and is_by_fault else None,
    )


def next_deadline_s(state: State, phase: Gathering) -> float:
    tells_s = phase.untold_until_s if phase.untold else phase.until_s
    if phase.not_before_s is not None:
        return min(phase.not_before_s, tells_s)
    last_call_until_s = phase.last_call_until_s if not state.members.busy else None  # That may be over already.
    orders_from_s = max(last_call_until_s or 0.0, phase.orders_from_s or 0.0) or None
    others_until_s = state.others_until_s if _left_by_excluded(state) < state.policy.rules.min_nodes else None
    moments = (phase.until_s, orders_from_s, phase.tell_at_s, tells_s, others_until_s)
    return min(moment for moment in moments if moment is not None)


def announce(state: State, reason: str) -> tuple[Action, ...]:
    again = orders.JoinAgain(state.cycle + 1, reason)
    return tuple(Send(node, again) for node, each in state.members.items() if each.state not in UNHEARD)


def pass_deadline(state: State, phase: Gathering, now_s: float) -> Outcome:
    if phase.untold and now_s >= phase.untold_until_s:
        told = said(state, "restart_decided", phase.untold)
        phase = msgspec.structs.replace(phase, untold="", untold_restarts=0)
        state, actions = pass_deadline(msgspec.structs.replace(state, phase=phase), phase, now_s)
        return state, (told, *actions)
    if phase.not_before_s is not None:
        return end_delay(state, phase, now_s) if now_s >= phase.not_before_s else (state, ())
    if phase.orders_from_s is not None and now_s >= phase.orders_from_s:
        state = msgspec.structs.replace(state, phase=msgspec.structs.replace(phase, orders_from_s=None))
    state, actions = close_round(state, now_s)
    if not isinstance(state.phase, Gathering):
        return state, actions
    if now_s >= phase.until_s:
        text = f"{phase.reason}; the nodes for the next cycle did not join in time: {_missing(state)}"
        return job_termination.wind_down(state, Verdict(JobState.FAILED, 1, text), now_s)
    if phase.tell_at_s is not None and now_s >= phase.tell_at_s:
        return _try_again(*_tell(state, now_s))
    return state, actions


def end_delay(state: State, phase: Gathering, now_s: float) -> Outcome:
    """Ends the back-off, which is over or was ended by an operator."""
    phase_now = msgspec.structs.replace(phase, not_before_s=None, is_announced=True)
    state, actions = close_round(msgspec.structs.replace(state, phase=phase_now), now_s)
    return state, (*(() if phase.is_announced else announce(state, phase.reason)), *actions)


def close_round(state: State, now_s: float) -> Outcome:
    """Orders the cycle once enough nodes have joined, nothing of the last one is left, and the delay is over."""
    phase = state.phase
    if not isinstance(phase, Gathering):
        return state, ()
    lost = excluded_verdict(state, now_s)
    if lost is not None:
        if state.cycle >= 0:  # People look for what ended that cycle.
            lost = msgspec.structs.replace(lost, reason=f"{phase.reason}; {lost.reason}")
        return job_termination.wind_down(state, lost, now_s)
    if phase.not_before_s is not None or not phase.is_announced or state.members.busy:
        return state, ()
    min_nodes = state.policy.rules.min_nodes
    if state.members.placeable < min_nodes:
        phase = msgspec.structs.replace(phase, last_call_until_s=None) if phase.last_call_until_s is not None else phase
        state = msgspec.structs.replace(state, phase=phase) if phase is not state.phase else state
        is_new = state.members.ready >= min_nodes and not phase.is_shortage_told
        return _tell(state, now_s) if is_new else (state, ())
    if _waits_for_more(state, phase):
        until_s = phase.last_call_until_s
        until_s = now_s + state.rules.rendezvous.last_call_s if until_s is None else until_s
        if now_s < until_s:
            last_call = msgspec.structs.replace(phase, last_call_until_s=until_s)
            return msgspec.structs.replace(state, phase=last_call), ()
    if phase.orders_from_s is not None and now_s < phase.orders_from_s:
        return state, ()
    placed = _place(state)
    assert placed is not None, "the counters and the placement count differently"
    found = job_termination.root_cause_found(state)
    if phase.untold:
        found = (said(state, "restart_decided", phase.untold), *found)
    before = state.parts
    state, parts = _order_cycle(state, placed.active, phase.reason, now_s)
    return state, (*found, *_placed(state, placed, before), *parts)


def can_do_without(state: State, node: str = "") -> bool:
    """Returns whether the nodes that may still join the round fill the cycle without that one.

    Those that were set aside do not count. An elastic job, too, can do with `min_nodes`.
    """
    if not isinstance(state.phase, Gathering):
        return False
    failed = state.phase.set_aside
    others = {
        name: each.facts
        for name, each in state.members.items()
        if name != node and each.may_join and (each.is_ready or name not in failed)
    }
    wanted = state.policy.rules.min_nodes
    return place(others, state.rules.rendezvous, wanted=wanted, before=state.parts) is not None


def set_aside(state: State, failed: NodeFailed, known: Member) -> Outcome:
    """Lets the round go on without a node that has failed: the cycle does not need it, so that costs no restart."""
    phase = state.phase
    assert isinstance(phase, Gathering)
    state = with_member(state, failed.node, msgspec.structs.replace(known, state=MemberState.FAILED))
    phase = msgspec.structs.replace(phase, set_aside=(*phase.set_aside, failed.node))
    text = f"node {failed.node}, which cycle {state.cycle + 1} does not need: {failed.reason}"
    return msgspec.structs.replace(state, phase=phase), (said(state, "spare_failed", text),)


def call_back(state: State, actions: tuple[Action, ...], event: Event) -> Outcome:
    """Has nodes that were set aside try again: each once, and all if another node that was to join will not."""
    phase = state.phase
    if not isinstance(phase, Gathering) or not phase.set_aside or not isinstance(event, _LACKING):
        return state, actions
    if not can_do_without(state):
        return _try_again(state, actions)
    has_failed_once = isinstance(event, NodeDown) and phase.set_aside.count(event.node) == 1
    return state, (*actions, *(_again(state, phase, event.node) if has_failed_once else ()))


def _try_again(state: State, actions: tuple[Action, ...]) -> Outcome:
    """Has all nodes that were set aside, and run nothing, try again. If they fail now, they count as new failures."""
    phase = state.phase
    assert isinstance(phase, Gathering)
    down = [node for node in dict.fromkeys(phase.set_aside) if state.members[node].state is MemberState.DOWN]
    rest = tuple(node for node in phase.set_aside if node not in down)
    state = msgspec.structs.replace(state, phase=msgspec.structs.replace(phase, set_aside=rest))
    return state, (*actions, *_again(state, phase, *down))


def _again(state: State, phase: Gathering, *nodes: str) -> tuple[Action, ...]:
    order = orders.JoinAgain(state.cycle + 1, phase.reason)
    return tuple(Send(node, order) for node in nodes) if phase.is_announced else ()


def keep_out(state: State, event: NodeExcluded | NodeCordoned | NodeSilent | NodeHeard) -> Outcome:
    """Keeps the node out of the next rounds: for good, until uncordoned, or until it is heard. A cycle continues."""
    known = state.members.get(event.node)
    match event:
        case NodeExcluded(reason=reason):
            known = known or Member(MemberState.FAILED)
            return with_member(state, event.node, msgspec.structs.replace(known, excluded=reason)), ()
        case NodeSilent() | NodeHeard():
            if known is None or known.state in UNHEARD:
                return state, ()
            is_silent = isinstance(event, NodeSilent)
            return with_member(state, event.node, msgspec.structs.replace(known, is_silent=is_silent)), ()
        case NodeCordoned(reason=reason):
            if known is None or known.cordoned == reason:
                return state, ()
            state = with_member(state, event.node, msgspec.structs.replace(known, cordoned=reason))
            kind, text = "node_uncordoned", "takes part in later cycles again"
            if reason:
                kind, text = "node_cordoned", f"takes part in no later cycle: {reason}"
            return state, (said(state, kind, f"node {event.node} {text}"),)
        case _:
            assert_never(event)


def held_back(state: State, stands: NodeStands, now_s: float) -> State:
    """Lets a first start wait longer for a node that left another leader: the ledger was lost.

    That leader's workers may run for as long as at a take-over.
    """
    phase, from_s = state.phase, now_s - stands.left_ago_s + LEFT_S
    if not stands.met_term:
        return state
    if isinstance(phase, Unopened) and 0.0 < phase.until_s < from_s:
        return msgspec.structs.replace(state, phase=msgspec.structs.replace(phase, until_s=from_s))
    if isinstance(phase, Gathering) and phase.orders_from_s is not None and phase.orders_from_s < from_s:
        return msgspec.structs.replace(state, phase=msgspec.structs.replace(phase, orders_from_s=from_s))
    return state


def excluded_verdict(state: State, now_s: float, exit_code: int = 1) -> Verdict | None:
    """Returns the verdict on a job that excluded nodes leave with too few.

    None while there may be enough: a spare of the last leader may not have met the new one yet.
    """
    left, needed = _left_by_excluded(state), state.policy.rules.min_nodes
    if left >= needed or now_s < state.others_until_s:
        return None
    why = "; ".join(each.excluded for each in state.members.values() if each.excluded)
    are_left = f"{counted(left)} {'is' if left == 1 else 'are'} left"
    reason = f"{why}; {are_left} where {needed} {'is' if needed == 1 else 'are'} needed"
    return Verdict(JobState.FAILED, exit_code, reason)


def healthy_nodes(state: State, *, without: str) -> int:
    """Returns how many nodes of the cycle run without that one; 0 if all others still wait for its store."""
    is_awaited = state.store is None and len(state.parts) > 1 and state.parts[0] == without
    return 0 if is_awaited or not isinstance(state.phase, Running) else state.members.count(MemberState.RUNNING)


def _left_by_excluded(state: State) -> int:
    """Returns how many nodes may take part, those that may still come included; enough if none is excluded."""
    members, needed = state.members, state.policy.rules.min_nodes
    if not members.excluded:
        return needed
    return max(len(members) - members.turned_away, state.rules.rendezvous.max_nodes) - members.excluded


# --- waiting -------------------------------------------------------------------------------------------------------


def _has_others(rules: JobRules) -> bool:
    return max(rules.rendezvous.max_nodes, rules.restart.min_nodes) > 1


def _waits_for_more(state: State, phase: Gathering) -> bool:
    """Returns whether a node that may still come would change who takes part. One that has failed twice may not."""
    rules, members = state.rules.rendezvous, state.members
    if rules.max_nodes <= state.policy.rules.min_nodes or members.ready >= rules.max_nodes:
        return False
    if state.cycle < 0:
        return True
    failed = [members[node] for node, times in Counter(phase.set_aside).items() if times > 1]
    down = [each for each in failed if each.is_returning]
    if rules.elastic:
        return members.count(MemberState.OPENED) + members.returning() > len(down)
    return members.returning(state.cycle) > sum(each.cycle == state.cycle for each in down)


def _tell(state: State, now_s: float) -> Outcome:
    phase = state.phase
    assert isinstance(phase, Gathering)
    phase = msgspec.structs.replace(
        phase,
        tell_at_s=now_s + phase.tell_again_s,
        tell_again_s=2 * phase.tell_again_s,
        is_shortage_told=phase.is_shortage_told or state.members.ready >= state.policy.rules.min_nodes,
    )
    state = msgspec.structs.replace(state, phase=phase)
    text = f"{_missing(state)}; the job ends if this lasts another {max(0.0, phase.until_s - now_s):.0f} s"
    return state, (said(state, "rendezvous_waits", text),)


def _missing(state: State) -> str:
    members, min_nodes = dict(state.members.items()), state.policy.rules.min_nodes
    return missing_sentence(members, state.rules.rendezvous, min_nodes=min_nodes, before=state.parts)


# --- the cycle -----------------------------------------------------------------------------------------------------


def _place(state: State) -> Placement | None:
    rules, members = state.rules.rendezvous, state.members
    wanted = state.policy.rules.min_nodes
    if rules.elastic:
        segment = rules.segment or 1
        wanted = max(wanted, min(members.placeable, rules.max_nodes // segment * segment))
    ready = {node: each.facts for node, each in members.items() if each.is_ready}
    return place(ready, rules, wanted=wanted, before=state.parts)


def _placed(state: State, placed: Placement, before: tuple[str, ...]) -> tuple[Action, ...]:
    """Reports the placement to people if it is news."""
    if not _has_others(state.rules) or before == placed.active:
        return ()
    text = f"cycle {state.cycle} runs on {names(placed.active)}"
    joining = set(placed.active).difference(before) if before else set[str]()
    leaving = set(before).difference(placed.active)
    changes = [f"{names(sorted(nodes))} {word}" for word, nodes in (("in", joining), ("out", leaving)) if nodes]
    text += f" ({'; '.join(changes)})" if changes else ""
    if placed.spares:
        text += f"; spare{'s' if len(placed.spares) > 1 else ''}: {names(placed.spares)}"
    return (said(state, "nodes_placed", text),)


def _order_cycle(state: State, chosen: tuple[str, ...], reason: str, now_s: float) -> Outcome:
    cycle = state.cycle + 1
    for node, each in list(state.members.items()):
        if each.cause is not None:
            state.members.put(node, msgspec.structs.replace(each, cause=None))
    for node in chosen:
        each = msgspec.structs.replace(state.members[node], state=MemberState.RUNNING, cycle=cycle)
        state.members.put(node, each)
    state = msgspec.structs.replace(
        with_parts(state, chosen),
        phase=Running(now_s),
        cycle=cycle,
        epoch=state.own_epoch,
        first_failure="",
        calls=wrapped_call.initial_state(len(chosen) * state.rules.local_world_size),
        store=None,
        vacant=(),
        lost_in_call=(),
        resigned=(),
        leaving=(),
        evidence=hang_evidence.initial_state(),
    )
    return state, tuple(Send(node, start_order(state, part, reason)) for part, node in enumerate(chosen))
