"""What is the state of a job on this node, as a new leader needs it?"""

from __future__ import annotations

from typing import assert_never

from supervisor.core import job_phases as phases
from supervisor.core.cluster.cluster_messages import MemberState, NodeStands
from supervisor.core.facts import Assignment
from supervisor.core.job_phases import State


def state_report(state: State) -> NodeStands:
    assignment, cycle = state.assignment, state.cycle
    if isinstance(state.phase, phases.Stopping) and isinstance(state.phase.then, phases.StartNext):
        assignment, cycle = state.phase.then.assignment, state.phase.then.assignment.cycle
    store = state.store if _serves(state, assignment) else None
    return NodeStands(
        state.node,
        state.rules,
        _member_state(state),
        cycle,
        assignment,
        state.restarts_used,
        state.reason,
        state.first_failure,
        restart_allowed=not state.shutdown,
        all_succeeded=isinstance(state.phase, phases.Stopped) and state.phase.all_succeeded,
        lost=state.phase.lost if isinstance(state.phase, phases.Finished) else (),
        store_host=store.host if store is not None else "",
        store_port=store.port if store is not None else 0,
        stop_reason=state.stop_reason,
        stop_signal=state.stop_signal,
        stop_is_final=state.stop_is_final,
        stop_grace_s=state.stop_grace_s,
        stop_at_once=state.stop_at_once,
        cordoned=state.cordoned,
        excluded=state.excluded,
        leave=state.leaving.asked if state.leaving is not None and not state.leaving.is_alone else None,
        verdict=phases.verdict_of(state) or state.decided,
    )


def _serves(state: State, assignment: Assignment | None) -> bool:
    """Returns whether the other nodes of the cycle need to know of the store here."""
    if assignment is None or assignment.group_rank != 0 or assignment.group_world_size == 1:
        return False
    return state.store is not None and state.store.cycle == assignment.cycle and state.store.port > 0


def _member_state(state: State) -> MemberState:
    match state.phase:
        case phases.Pending():
            return MemberState.OPENED
        case phases.Rendezvous():
            return MemberState.JOINED
        case phases.AwaitingStore() | phases.Starting() | phases.Running():
            return MemberState.RUNNING
        case phases.Finished():
            return MemberState.SUCCEEDED
        case phases.Stopping(phases.StartNext()):
            return MemberState.RUNNING  # In the cycle that it begins next.
        case phases.Stopping():
            return MemberState.FAILED
        case phases.Down():
            return MemberState.DOWN
        case phases.Stopped():
            return MemberState.STOPPED
        case phases.Closing() | phases.Ended():
            return MemberState.INFORMED
        case _:
            assert_never(state.phase)
