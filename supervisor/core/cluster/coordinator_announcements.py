"""What does the coordinator announce about a job's cycles?

A part of the machine coordinator.py. It compares the states before and after a decision, so no way through the
decisions can forget an announcement. A new leader knows from the ledger what earlier leaders have announced.
"""

from __future__ import annotations

from supervisor.core.announcements import CycleBegan, CycleEnded, LeadChanged, NodeLost, PartsChanged
from supervisor.core.cluster import cluster_messages
from supervisor.core.cluster.cluster_messages import Action
from supervisor.core.cluster.coordinator_states import Outcome, Running, State, TakingOver
from supervisor.core.cluster.node_states import UNHEARD


def lead_taken(state: State) -> LeadChanged:
    """Returns the announcement of a node that begins to lead, or whose supervisor has returned."""
    return LeadChanged(leads=True, cycle=state.cycle)


def lead_lost() -> LeadChanged:
    return LeadChanged(leads=False)


def node_lost(lost: cluster_messages.NodeLost) -> NodeLost:
    return NodeLost(lost.node, lost.reason)


def with_announcements(before: State, after: State, actions: tuple[Action, ...]) -> Outcome:
    """Puts the announcements of a decision before its orders."""
    if after.phase is before.phase and after.parts is before.parts:
        return after, actions
    if before.recorded is not None and after.recorded is None:
        return after, actions  # Given up here only: the cycle may go on with other nodes.
    ended, began = _cycle(before), _cycle(after)
    if ended == began:
        is_moved = isinstance(before.phase, Running) and began is not None and after.parts != before.parts
        moved = (PartsChanged(after.cycle, after.parts, _standby(after)),) if is_moved else ()
        return after, (*moved, *actions)
    told: list[Action] = []
    if ended is not None:
        told.append(CycleEnded(ended, _writers(before, after)))
    if began is not None:
        told.append(CycleBegan(began, after.parts, _standby(after)))
    return after, (*told, *actions)


def _cycle(state: State) -> int | None:
    """Returns the cycle that runs; None: none does."""
    match state.phase:
        case Running():
            return state.cycle
        case TakingOver():
            ledger = state.recorded
            ends = ledger is None or ledger.verdict is not None or ledger.stop_signal is not None
            return None if ledger is None or ends or ledger.opened > ledger.cycle or ledger.cycle < 0 else ledger.cycle
        case _:
            return None


def _writers(before: State, after: State) -> tuple[str, ...]:
    parts = before.parts or (before.recorded.parts if before.recorded is not None else ())
    nodes = ((node, after.members.get(node)) for node in parts)
    return tuple(node for node, known in nodes if known is not None and known.state not in UNHEARD)


def _standby(state: State) -> tuple[str, ...]:
    parts = frozenset(state.parts)
    return tuple(sorted(node for node, each in state.members.items() if each.is_ready and node not in parts))
