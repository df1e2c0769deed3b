"""What do people and ranks want from a job, and what does its node do about it?"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core import job_phases as phases
from supervisor.core.cluster import messages as cluster_messages
from supervisor.core.facts import JobEvent
from supervisor.core.job_phases import State
from supervisor.core.job_sentences import control_sentence, limits_sentence
from supervisor.core.node import job_moves as moves
from supervisor.core.node import messages as node_messages

Wish = (
    node_messages.StopRequested | node_messages.RestartRequested | node_messages.ControlRequested
    | node_messages.LimitsCalculated
)  # fmt: skip
Outcome = moves.Outcome


def take(state: State, wish: Wish) -> Outcome:
    match wish:
        case node_messages.StopRequested():
            return _stop_requested(state, wish)
        case node_messages.RestartRequested(reason=reason):
            return _restart_requested(state, reason)
        case node_messages.ControlRequested():
            return _control_requested(state, wish)
        case node_messages.LimitsCalculated():
            return _limits_calculated(state, wish)
        case _:
            assert_never(wish)


def _stop_requested(state: State, event: node_messages.StopRequested) -> Outcome:
    """Reports a requested stop; the coordinator orders it on all nodes, so none takes it for a fault."""
    said = moves.say(state, "stop_requested", event.reason)
    return state, (said, moves.tell(state, cluster_messages.StopAsked(event.reason, event.signal)))


def _restart_requested(state: State, reason: str) -> Outcome:
    match state.phase:
        case phases.Stopping(then=phases.Leave()) | phases.Stopped() | phases.Closing():
            return state, (moves.say(state, "restart_refused", f"cannot restart: the job is ending; {state.reason}"),)
        case _:
            said = moves.say(state, "restart_requested", reason)
            return state, (said, moves.tell(state, cluster_messages.RestartAsked(reason)))


def _control_requested(state: State, event: node_messages.ControlRequested) -> Outcome:
    first_rank = state.assignment.first_rank if state.assignment is not None else 0
    rank = first_rank + event.local_rank
    text = control_sentence(event.action, event.description, rank=rank, node=state.node)
    told = JobEvent("control_requested", text, max(state.cycle, 0), rank, (("action", event.action),))
    said = node_messages.Publish(state.rules.job_id, told)
    match event.action:
        case "exclude_this_node":
            return state, (said, moves.tell(state, cluster_messages.NodeExcluded(state.node, text)))
        case "shutdown_workload":
            return msgspec.structs.replace(state, shutdown=state.shutdown or text), (said,)
        case _:
            return state, (said,)


def _limits_calculated(state: State, event: node_messages.LimitsCalculated) -> Outcome:
    if event.limits == state.limits:
        return state, ()  # Every rank of the node reports the same.
    state = msgspec.structs.replace(state, limits=event.limits)
    return state, (
        moves.say(state, "limits_calculated", f"the ranks calculated new limits: {limits_sentence(event.limits)}"),
    )
