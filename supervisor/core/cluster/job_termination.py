"""How does a job end on all nodes, and which of them know about it?

Before a verdict, or a stop that leads to one, every node stops its part. Once all have reported that nothing is left,
or are given up, the verdict is final: it names the first failure on any node, the same everywhere.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core import orders
from supervisor.core.cluster import cluster_messages, hang_evidence, missed_reports, restart_policy
from supervisor.core.cluster.cluster_messages import Action, Event, Send
from supervisor.core.cluster.coordinator_states import (
    Ended,
    Gathering,
    Outcome,
    State,
    Stop,
    WindingDown,
    active_nodes,
    said,
    with_member,
    without,
)
from supervisor.core.cluster.node_states import GONE, UNHEARD, Member, MemberState
from supervisor.core.facts import JobState, Verdict
from supervisor.core.job_text import succeeded_sentence
from supervisor.core.root_cause import first_cause
from supervisor.core.stop_verdict import STOP_FOLLOWS_S, stopped_verdict

WIND_DOWN_S = 60.0  # beyond the workers' grace period, for a node to report that it has stopped
VERDICT_S = 60.0  # for a node to confirm the verdict


def is_over(state: State) -> bool:
    """Returns whether every node knows the verdict or was given up."""
    return isinstance(state.phase, Ended) and state.members.are_all(*GONE)


def succeeded_verdict(lost: tuple[int, ...]) -> Verdict:
    """Returns the verdict of a success. `lost`: ranks that the job went on without."""
    return Verdict(JobState.SUCCEEDED, 0, succeeded_sentence("", lost))


def outcome_asked(
    state: State, event: cluster_messages.StopAsked | cluster_messages.LeaveAsked | cluster_messages.JobForbidden
) -> Verdict | Stop:
    if isinstance(event, cluster_messages.StopAsked):
        return Stop(event.signal, event.reason, event.grace_s, event.is_final, event.at_once)
    if isinstance(event, cluster_messages.LeaveAsked):
        return Stop(event.signal, event.reason, event.grace_s)
    exit_code = state.rules.restart.no_restart_exit_code if event.exit_code is None else event.exit_code
    return Verdict(JobState.FAILED, exit_code, event.reason)


def wind_down(
    state: State, outcome: Verdict | Stop, now_s: float, *, may_be_stop: bool = False, at_once: bool = False
) -> Outcome:
    """Has every node stop its part. `may_be_stop`: a scheduler may have ended ranks, and soon asks for the stop.

    `at_once`: an earlier leader has been asked to kill all ranks.
    """
    stop = outcome if isinstance(outcome, Stop) else None
    signal, grace_s = (stop.signal, stop.grace_s) if stop is not None else (0, None)
    phase = WindingDown(
        outcome,
        _until_s(state, signal, grace_s, now_s),
        is_stop_asked=stop is not None,
        at_once=at_once or (stop is not None and stop.at_once),
        may_be_stop_until_s=now_s + STOP_FOLLOWS_S if may_be_stop and stop is None else None,
    )
    if isinstance(state.phase, Gathering) and state.phase.untold:  # That restart never was one.
        policy = restart_policy.give_back(state.policy, state.phase.untold_restarts)
        state = msgspec.structs.replace(state, policy=policy)
    state = msgspec.structs.replace(state, phase=phase)
    return _conclude_if_stopped(state, phase, now_s, _to_all(state, _order(phase)))


def step_winding_down(state: State, phase: WindingDown, event: Event, now_s: float) -> Outcome:
    match event:
        case cluster_messages.NodeStopped(node, all_succeeded, cause):
            known = state.members.get(node) or Member(MemberState.STOPPED)
            if known.state in UNHEARD:
                return state, ()
            stopped = msgspec.structs.replace(
                known.with_cause(cause, now_s), state=MemberState.STOPPED, all_succeeded=all_succeeded
            )
            return _conclude_if_stopped(with_member(state, node, stopped), phase, now_s, ())
        case cluster_messages.JobOpened(node):
            state = with_member(state, node, Member(MemberState.OPENED))
            return state, (Send(node, _order(phase)),)
        case cluster_messages.NodeStands():
            return _come_back(state, phase, event, now_s)
        case cluster_messages.NodeLost() if event.node in state.members:
            return _conclude_if_stopped(without(state, event), phase, now_s, ())
        case (
            cluster_messages.StopAsked() | cluster_messages.LeaveAsked(or_stop=True)
        ) if phase.may_be_stop_until_s is not None:  # fmt: skip
            return wind_down(state, outcome_asked(state, event), now_s)
        case cluster_messages.StopAsked():
            return _stop_again(state, phase, event, now_s)
        case cluster_messages.StacksTaken(_, cycle):
            if cycle != state.cycle:
                return state, ()
            taken, actions = hang_evidence.step(state.evidence, event, now_s=now_s, cycle=cycle, nodes=state.parts)
            return msgspec.structs.replace(state, evidence=taken), actions
        case cluster_messages.DeadlineReached():
            if phase.may_be_stop_until_s is not None and now_s >= phase.may_be_stop_until_s:
                phase = msgspec.structs.replace(phase, may_be_stop_until_s=None)
                state = msgspec.structs.replace(state, phase=phase)
                return _conclude_if_stopped(state, phase, now_s, _to_all(state, _order(phase)))
            return _conclude(state, phase, now_s) if now_s >= phase.until_s else (state, ())
        case (
            cluster_messages.NodeJoined() | cluster_messages.NodeFailed() | cluster_messages.NodeDown()
            | cluster_messages.NodeSucceeded() | cluster_messages.VerdictTaken() | cluster_messages.StoreServed()
            | cluster_messages.CallReport() | cluster_messages.StacksWanted() | cluster_messages.NodeExcluded()
            | cluster_messages.NodeCordoned() | cluster_messages.NodeSilent() | cluster_messages.NodeHeard()
            | cluster_messages.RestartAsked() | cluster_messages.JobForbidden() | cluster_messages.NodeLost()
            | cluster_messages.LeaveAsked() | cluster_messages.WorkersLinger()
        ):  # fmt: skip
            return state, ()  # It crossed the order to stop, which the node answers next.
        case _:
            assert_never(event)


def step_ended(state: State, phase: Ended, event: Event, now_s: float) -> Outcome:
    """Tells a node that still wants to take part how the job ended; all others know."""
    match event:
        case cluster_messages.VerdictTaken(node):
            return with_member(state, node, Member(MemberState.INFORMED)), ()
        case cluster_messages.NodeLost() if event.node in state.members:
            return without(state, event), ()
        case (
            cluster_messages.JobOpened(node) | cluster_messages.NodeJoined(node) | cluster_messages.NodeFailed(node)
            | cluster_messages.NodeStopped(node) | cluster_messages.NodeStands(node)
        ):  # fmt: skip
            known = state.members.get(node) or Member(MemberState.STOPPED)
            return with_member(state, node, known), (Send(node, orders.Conclude(phase.verdict)),)
        case cluster_messages.DeadlineReached() if now_s >= phase.until_s:
            for node in state.members:
                state.members.put(node, Member(MemberState.INFORMED))
            return state, ()
        case _:
            return state, ()


def root_cause_found(state: State) -> tuple[Action, ...]:
    """Returns a sentence for people if the first failure was not the one that was seen first."""
    cause = _cause(state)
    if not cause or cause == state.first_failure:
        return ()
    return (said(state, "root_cause_found", f"{cause}; it came before what was seen first: {state.first_failure}"),)


def _stop_again(state: State, phase: WindingDown, event: cluster_messages.StopAsked, now_s: float) -> Outcome:
    """Handles a further request: one that says so ends everything at once, and a command shortens the time of all.

    Any other one, and a request that is repeated, asks nothing more of the other nodes: what ends nodes one after
    another signals each of them once. The node decides, because the leader may hear signals late and together.
    """
    outcome = phase.outcome
    is_command = event.is_final and outcome_asked(state, event) != outcome
    if event.is_final and isinstance(outcome, Stop) and not outcome.signal:
        phase = msgspec.structs.replace(phase, outcome=msgspec.structs.replace(outcome, is_final=True))
        state = msgspec.structs.replace(state, phase=phase)
    if phase.is_stop_asked and not event.at_once and not is_command:
        return state, ()
    until_s = min(phase.until_s, _until_s(state, event.signal, event.grace_s, now_s))
    phase = msgspec.structs.replace(phase, is_stop_asked=True, until_s=until_s, at_once=phase.at_once or event.at_once)
    order = orders.WindDown(event.reason, event.signal, at_once=phase.at_once, grace_s=event.grace_s)
    return msgspec.structs.replace(state, phase=phase), _to_all(state, order)


def _come_back(state: State, phase: WindingDown, stands: cluster_messages.NodeStands, now_s: float) -> Outcome:
    """Handles a node that comes back, and a kill asked for there: its own report may have reached no leader."""
    kill = next((each for each in missed_reports.stop_of(stands) if each.at_once and not phase.at_once), None)
    if kill is not None:
        state, killed = step_winding_down(state, phase, kill, now_s)
        if isinstance(state.phase, Ended):
            state, more = step_ended(state, state.phase, stands, now_s)
        else:
            assert isinstance(state.phase, WindingDown)
            state, more = _come_back(state, state.phase, stands, now_s)
        return state, (*killed, *more)
    if stands.state in GONE or stands.state is MemberState.STOPPED:
        stopped = Member(stands.state, all_succeeded=stands.all_succeeded)
        return _conclude_if_stopped(with_member(state, stands.node, stopped), phase, now_s, ())
    known = state.members.get(stands.node)
    if known is None or known.state in UNHEARD:  # A lost node is a new process now, or has come back.
        known = Member(MemberState.OPENED, stands.cycle)
    return with_member(state, stands.node, known), (Send(stands.node, _order(phase)),)


def _order(phase: WindingDown) -> orders.WindDown:
    """Returns the order to stop. The ranks of a node that gets it later, or again, have as much time as the others.

    It has a decided verdict: the nodes keep it in case the backend loses the ledger.
    """
    outcome, at_once = phase.outcome, phase.at_once
    if isinstance(outcome, Stop):
        return orders.WindDown(outcome.reason, outcome.signal, at_once=at_once, grace_s=outcome.grace_s)
    decided = outcome if phase.may_be_stop_until_s is None else None
    return orders.WindDown(outcome.reason, at_once=at_once, verdict=decided)


def _until_s(state: State, signal: int, grace_s: float | None, now_s: float) -> float:
    configured_s = state.rules.term_timeout_s if signal else state.rules.workers_stop_timeout_s
    return now_s + (configured_s if grace_s is None else grace_s) + WIND_DOWN_S


def _conclude_if_stopped(state: State, phase: WindingDown, now_s: float, actions: tuple[Action, ...]) -> Outcome:
    if phase.may_be_stop_until_s is not None or not state.members.are_all(MemberState.STOPPED, *GONE):
        return state, actions
    state, more = _conclude(state, phase, now_s)
    return state, (*actions, *more)


def _conclude(state: State, phase: WindingDown, now_s: float) -> Outcome:
    found = root_cause_found(state)
    match phase.outcome:
        case Stop(signal, reason, is_final=is_final):
            succeeded = bool(state.parts) and all(state.members[node].all_succeeded for node in state.parts)
            final_code = state.rules.restart.no_restart_exit_code if is_final else None
            verdict = stopped_verdict(signal, reason, all_succeeded=succeeded, final_code=final_code)
        case Verdict() as verdict:
            if found:
                reason = verdict.reason.replace(state.first_failure, _cause(state))
                verdict = msgspec.structs.replace(verdict, reason=reason)
        case _:
            assert_never(phase.outcome)
    state = msgspec.structs.replace(state, phase=Ended(verdict, now_s + VERDICT_S))
    heard = (node for node, each in state.members.items() if each.state not in UNHEARD)
    return state, (*found, *(Send(node, orders.Conclude(verdict)) for node in heard))


def _cause(state: State) -> str:
    """Returns the first failure on all nodes; "" if no more is known than what was seen first."""
    seen = state.members.get(state.failed_on)
    if not state.first_failure or seen is None or seen.cause is None:
        return ""
    at_s = None if seen.caused_at_s is None else min(seen.caused_at_s, state.failed_at_s)
    active = set(active_nodes(state))  # The others' failures were those of an earlier group.
    others = (
        (each.cause, each.caused_at_s)
        for node, each in state.members.items()
        if each.cause is not None and node in active and each.cycle == state.cycle
    )
    return first_cause((seen.cause, at_s), others).sentence


def _to_all(state: State, order: orders.Order) -> tuple[Action, ...]:
    return tuple(Send(node, order) for node, each in state.members.items() if each.state not in UNHEARD)
