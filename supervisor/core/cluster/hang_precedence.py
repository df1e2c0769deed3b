"""A rank hangs, and then a rank on another node fails: which of them is the fault of the job?

A part of the machine coordinator.py. The hang is the fault, because what follows it may be its consequence. So a
failure of another node waits until a node with hung ranks has reported the hang as its fault, which then decides for
all. The failure counts only if that report does not come: the hang was none. Failures on the node of the hang never get
here before: node/job.py holds them back by the same rule, also without a leader.
"""

from __future__ import annotations

import msgspec

from supervisor.core.cluster.cluster_messages import NodeFailed, StacksWanted
from supervisor.core.cluster.coordinator_states import Hang, Running, State, with_member
from supervisor.core.cluster.node_states import MemberState

ENDED_S = 3.0  # after its evidence, a hang is reported as a fault: ranks that may react to a signal have 2 s


def found(state: State, wanted: StacksWanted, now_s: float) -> State:
    """Notes a hang, for whose evidence its node asks."""
    if not wanted.noticed:
        return state  # A wrapped call decides what happens to its ranks.
    until_s = now_s + wanted.budget_s + ENDED_S
    hang = state.hang
    if hang is None:
        return msgspec.structs.replace(state, hang=Hang({wanted.node: None}, until_s))
    hang.nodes[wanted.node] = None
    hang.until_s = max(hang.until_s, until_s)
    return state


def came_first(state: State, failed: NodeFailed) -> bool:
    """Returns whether this failure comes after a hang elsewhere, and waits for it."""
    known = state.members.get(failed.node)
    return (
        state.hang is not None
        and failed.node not in state.hang.nodes
        and failed.restart_allowed  # Otherwise the job ends, whatever else has happened.
        and known is not None
        and known.state is MemberState.RUNNING
        and known.cycle == failed.cycle == state.cycle
        and (state.calls is None or not state.calls.call)  # A wrapped call has its own rules for lost ranks.
    )


def wait(state: State, failed: NodeFailed) -> State:
    assert state.hang is not None, "came_first() says so"
    state.hang.later.append(failed)
    known = state.members[failed.node]
    return with_member(state, failed.node, msgspec.structs.replace(known, state=MemberState.FAILED))


def is_awaited(state: State) -> bool:
    """Returns whether a failure waits, so the cycle can't succeed."""
    return state.hang is not None and bool(state.hang.later)


def next_deadline_s(state: State) -> float | None:
    return state.hang.until_s if state.hang is not None else None


def settle(state: State, now_s: float) -> tuple[State, tuple[NodeFailed, ...]]:
    """Forgets a hang that was decided, or that has proved false. Returns the failures that are to be decided then."""
    hang = state.hang
    if hang is None:
        return state, ()
    runs = any(known.state is MemberState.RUNNING for node in hang.nodes if (known := state.members.get(node)))
    if isinstance(state.phase, Running) and runs and now_s < hang.until_s:
        return state, ()
    return msgspec.structs.replace(state, hang=None), tuple(hang.later)
