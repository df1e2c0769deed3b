"""A restart waits for workers that do not end by SIGTERM: is that pointless, because none of them can go on?

A part of the machine coordinator.py. A rank whose main thread waits in a collective runs no Python handler for SIGTERM,
and after a fault the ranks that it waits for are gone. So when workers linger, all nodes that still have workers look
at them at the same time. If every rank that is left waits in a collective (core/hangs/lost_rank_deadlock.py), they are
ended. Nothing is asked where a rank may still save: after a stop, an operator's restart, or a fault that may be a
scheduler's stop.
"""

from __future__ import annotations

import msgspec

from supervisor.core.cluster import hang_evidence
from supervisor.core.cluster.cluster_messages import Send, StacksTaken, WorkersLinger
from supervisor.core.cluster.coordinator_states import Gathering, Inquiry, Outcome, State, said
from supervisor.core.cluster.node_states import BUSY
from supervisor.core.hangs import lost_rank_deadlock
from supervisor.core.hangs.hang_text import subject
from supervisor.core.orders import EndDeadlocked, TakeStacks

APART_S = 0.7  # between the two looks at a process
# Two intervals of at least APART_S within less than twice that time overlap: all looks share a moment.
BUDGET_S = 2 * APART_S


def ask(state: State, event: WorkersLinger, now_s: float) -> Outcome:
    """Has all nodes of the cycle look at their ranks, unless one of them has an earlier look under way."""
    phase = state.phase
    if not isinstance(phase, Gathering) or not phase.is_by_fault or event.cycle != state.cycle:
        return state, ()
    if state.rules.evidence_budget_s <= 0:
        return state, ()  # No stacks are wanted.
    nodes = tuple(node for node, each in state.members.items() if each.state in BUSY and each.cycle == state.cycle)
    if not isinstance(state.evidence, hang_evidence.Quiet):
        return state, ()
    awaited = phase.inquiry.awaited if phase.inquiry is not None else {}
    if not {*awaited, *state.evidence.late}.isdisjoint(nodes):
        return state, ()  # A late answer could be taken for one to this question.
    inquiry = Inquiry(nodes, now_s + BUDGET_S, dict.fromkeys(nodes))
    take = TakeStacks(state.cycle, (), BUDGET_S, APART_S)
    phase = msgspec.structs.replace(phase, inquiry=inquiry)
    return msgspec.structs.replace(state, phase=phase), tuple(Send(node, take) for node in nodes)


def awaits(state: State, event: StacksTaken) -> bool:
    phase = state.phase
    return isinstance(phase, Gathering) and phase.inquiry is not None and event.node in phase.inquiry.awaited


def answer(state: State, event: StacksTaken, now_s: float) -> Outcome:
    """Takes a node's answer. Once all have come in time, ends the ranks of which none can go on."""
    phase = state.phase
    assert isinstance(phase, Gathering), "awaits() says so"
    inquiry = phase.inquiry
    assert inquiry is not None, "awaits() says so"
    del inquiry.awaited[event.node]
    inquiry.parts.append(event.evidence)
    if inquiry.awaited or now_s >= inquiry.until_s:
        return state, ()
    world_size = len(state.parts) * state.rules.local_world_size
    found = lost_rank_deadlock.find(inquiry.parts, world_size=world_size)
    state = msgspec.structs.replace(state, phase=msgspec.structs.replace(phase, inquiry=None))
    if found is None:
        return state, ()
    is_one = len(found.ranks) == 1
    text = (
        f"{found.clause} for ranks that are gone, so no handler for SIGTERM can run there; "
        f"{subject(found.ranks)} {'is' if is_one else 'are'} ended without waiting any longer"
    )
    end = EndDeadlocked(state.cycle, text)
    return state, (said(state, "deadlock_ended", text), *(Send(node, end) for node in inquiry.nodes))
