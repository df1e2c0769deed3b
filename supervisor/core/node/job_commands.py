"""What do people and ranks want from a job, and what does its node do about it?"""

from __future__ import annotations

from signal import SIGKILL
from typing import assert_never

import msgspec

from supervisor.core import job_phases as phases
from supervisor.core import orders
from supervisor.core.cluster import cluster_messages
from supervisor.core.facts import JobEvent
from supervisor.core.job_phases import State
from supervisor.core.job_text import control_sentence, limits_sentence, named_ranks
from supervisor.core.node import job_leaving, node_messages
from supervisor.core.node import phase_transitions as transitions
from supervisor.core.stop_verdict import another, is_one_request
from supervisor.core.worker_messages import Worker

Command = (
    node_messages.StopRequested | node_messages.LeaveRequested | node_messages.CordonRequested
    | node_messages.RestartRequested | node_messages.ControlRequested | node_messages.LimitsCalculated
)  # fmt: skip
Outcome = transitions.Outcome

_WITH_WORKERS = frozenset({phases.AwaitingStore, phases.Starting, phases.Running, phases.Finished, phases.Stopping})


def take(state: State, command: Command, now_s: float) -> Outcome:
    match command:
        case node_messages.StopRequested():
            return _stop_requested(state, command, now_s)
        case node_messages.LeaveRequested(reason=reason):
            return _leave_requested(state, reason, now_s)
        case node_messages.CordonRequested(reason=reason):
            cordoned = cluster_messages.NodeCordoned(state.node, reason)
            return msgspec.structs.replace(state, cordoned=reason), (transitions.tell(state, cordoned),)
        case node_messages.RestartRequested(reason=reason):
            return _restart_requested(state, reason)
        case node_messages.ControlRequested():
            return _control_requested(state, command)
        case node_messages.LimitsCalculated():
            return _limits_calculated(state, command)
        case _:
            assert_never(command)


def with_running(command: Command, workers: tuple[Worker, ...]) -> Command:
    """Returns the command; that for a stop with the ranks of this node that still run."""
    if not isinstance(command, node_messages.StopRequested):
        return command
    return msgspec.structs.replace(command, running=tuple(each.rank for each in workers if not each.ended))


def _stop_requested(state: State, event: node_messages.StopRequested, now_s: float) -> Outcome:
    """Reports a requested stop, which the coordinator orders on all nodes, so none takes it for a fault.

    The workers of this node stop at once: that needs nobody's consent, and the coordinator may be out of reach. A
    node's second signal ends everything at once: on all nodes, or on this one alone while it waits to leave. SIGKILL
    always does so on all nodes (decision 37).
    """
    state = job_leaving.without_old_stop(state, now_s)
    is_same = is_one_request(state.last_signal, event.signal, now_s - state.last_signal_at_s)
    is_second = state.last_signal != 0 and event.signal != 0 and not is_same
    if event.signal and not is_same:
        state = msgspec.structs.replace(state, last_signal=event.signal, last_signal_at_s=now_s)
    if event.of_node and _may_leave(state, event):
        asked = cluster_messages.LeaveAsked(
            state.node, event.reason, event.signal, or_stop=True, grace_s=event.grace_s,
            with_ranks=event.leaves or (state.leaving is not None and state.leaving.asked.with_ranks),
        )  # fmt: skip
        return job_leaving.ask(state, asked, now_s, is_second_signal=is_second)
    if max(state.rules.rendezvous.max_nodes, state.rules.restart.min_nodes) > 1:
        event = msgspec.structs.replace(event, reason=f"{event.reason} on node {state.node}")
    has_workers = type(state.phase) in _WITH_WORKERS
    at_once = is_second or event.signal == SIGKILL
    is_final = not event.signal and not event.of_node
    concerns_all = event.signal == SIGKILL or state.leaving is None or not _may_leave(state, event)
    asked = cluster_messages.StopAsked(
        event.reason, event.signal, grace_s=event.grace_s, is_final=is_final, at_once=at_once and concerns_all
    )
    said = _awaited(state, event, is_same=is_same, is_second=is_second) if has_workers else event.reason
    told = (transitions.say(state, "stop_requested", said), transitions.tell(state, asked))
    if is_same:
        return state, told
    if state.stop_at_s is None:
        state = msgspec.structs.replace(
            state, stop_reason=event.reason, stop_signal=event.signal, stop_is_final=is_final,
            stop_grace_s=event.grace_s, stop_at_s=now_s,
        )  # fmt: skip
    if asked.at_once:
        state = msgspec.structs.replace(state, stop_at_once=True)
    if not has_workers:
        return state, told
    order = orders.WindDown(event.reason, event.signal, at_once=at_once, grace_s=event.grace_s)
    state, stops = transitions.wind_down(state, order)
    return state, (*told, *stops)


def _may_leave(state: State, event: node_messages.StopRequested) -> bool:
    """Returns whether only this node is to end, and the job may go on without it, as its leader decides."""
    if max(state.rules.rendezvous.max_nodes, state.rules.restart.min_nodes) == 1:
        return False
    match state.phase:
        case phases.Pending() | phases.Rendezvous() | phases.Down():
            return True
        case phases.Stopping(phases.Leave()):
            return state.leaving is not None and state.leaving.is_alone
        case phases.Stopped() | phases.Closing() | phases.Ended():
            return False
        case _:
            return event.leaves or state.leaving is not None  # Who ends it now knows that the job is to go on.


def _leave_requested(state: State, reason: str, now_s: float) -> Outcome:
    match state.phase:
        case phases.Stopping(phases.Leave()) | phases.Stopped() | phases.Closing() | phases.Ended():
            return state, ()  # It is ending here.
        case _:
            asked = cluster_messages.LeaveAsked(state.node, reason, with_ranks=True)
            return job_leaving.ask(state, asked, now_s)


def _awaited(state: State, event: node_messages.StopRequested, *, is_same: bool, is_second: bool) -> str:
    """Returns the reason, which ranks the node waits for and how long: the sender of the signal reads it.

    `is_same`: the signal came so soon after another one that both are one request, and it kills nobody. `is_second`:
    it is another request.
    """
    if not event.signal or not event.running:
        return event.reason
    if is_same:
        return f"{event.reason}, too: signals this close are one request"
    ranks, is_one = named_ranks(event.running), len(event.running) == 1
    if is_second or event.signal == SIGKILL:
        return f"{event.reason}{' again' if is_second else ''}: {ranks} {'is' if is_one else 'are'} killed"
    who, whom = ("has", "it") if is_one else ("have", "them")
    grace_s = transitions.stop_order(state, event.signal, event.grace_s).grace_s
    given = f"{grace_s:g} s" if state.stop_at_s is None else f"the rest of {'its' if is_one else 'their'} time"
    return f"{event.reason}: {ranks} {who} {given} to end; {another(event.signal)} kills {whom} at once"


def _restart_requested(state: State, reason: str) -> Outcome:
    match state.phase:
        case phases.Stopping(then=phases.Leave()) | phases.Stopped() | phases.Closing():
            refused = f"cannot restart: the job is ending; {state.reason}"
            return state, (transitions.say(state, "restart_refused", refused),)
        case _:
            said = transitions.say(state, "restart_requested", reason)
            return state, (said, transitions.tell(state, cluster_messages.RestartAsked(reason)))


def _control_requested(state: State, event: node_messages.ControlRequested) -> Outcome:
    first_rank = state.assignment.first_rank if state.assignment is not None else 0
    rank = first_rank + event.local_rank
    text = control_sentence(event.action, event.description, rank=rank, node=state.node)
    told = JobEvent("control_requested", text, max(state.cycle, 0), rank, (("action", event.action),))
    said = node_messages.Publish(state.rules.job_id, told)
    match event.action:
        case "exclude_this_node":
            state = msgspec.structs.replace(state, excluded=state.excluded or text)
            return state, (said, transitions.tell(state, cluster_messages.NodeExcluded(state.node, text)))
        case "shutdown_workload":
            return msgspec.structs.replace(state, shutdown=state.shutdown or text), (said,)
        case _:
            return state, (said,)


def _limits_calculated(state: State, event: node_messages.LimitsCalculated) -> Outcome:
    if event.limits == state.limits:
        return state, ()  # Every rank of the node reports the same.
    state = msgspec.structs.replace(state, limits=event.limits)
    reason = f"the ranks calculated new limits: {limits_sentence(event.limits)}"
    return state, (transitions.say(state, "limits_calculated", reason),)
