"""When does a node that was asked to leave or stop its job leave, and how long does it wait for its leader?

The leader decides whether the node leaves. If no leader answers, the node leaves by itself: it stops its own ranks and
ends, and the others take it for lost. Ranks of a node that an operator drains go on until a leader answers, however
long that takes: nobody is about to end the node. If they end because the leader is silent, the node waits for it, too.
A node that has never met a leader knows of no job that goes on without it: for it, the job was stopped.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core import job_phases as phases
from supervisor.core import orders, worker_messages
from supervisor.core.cluster.cluster_messages import LeaveAsked
from supervisor.core.job_phases import Leaving, State
from supervisor.core.node import phase_transitions as transitions
from supervisor.core.stop_verdict import another, left_sentence, left_verdict, stopped_verdict

ANSWER_S = 3.0  # for the leader's answer, where nothing runs
ANSWER_WITH_RANKS_S = 10.0  # where ranks run: they may not be stopped for nothing
STOP_KEPT_S = 600.0  # a stop asked for where nothing runs; later, people have seen that the job goes on
STOP_KEPT_IN_CYCLE_S = 10.0  # if a cycle has begun since: its leader may have had no time to hear the stop

Outcome = transitions.Outcome

_WAITS = frozenset({phases.Pending, phases.Rendezvous, phases.Down})
_WORKS = frozenset({phases.AwaitingStore, phases.Starting, phases.Running, phases.Finished})
_ANSWERS = frozenset({orders.JoinAgain, orders.WindDown})


def ask(state: State, asked: LeaveAsked, now_s: float, *, is_second_signal: bool = False) -> Outcome:
    """Asks the leader to let the node go. A second signal does not wait for it; one signal after a drain does."""
    before = state.leaving
    if before is not None and (before.asked.or_stop or not asked.or_stop):
        return leave_alone(state, before, at_once=True) if is_second_signal else (state, ())
    alone_at_s = None if asked.with_ranks and not asked.or_stop else now_s + ANSWER_WITH_RANKS_S
    if type(state.phase) in _WAITS:
        alone_at_s = now_s + ANSWER_S
    elif before is not None and isinstance(state.phase, phases.Stopping):
        alone_at_s = None  # The leader has answered: its ranks are ending.
    state = msgspec.structs.replace(state, leaving=Leaving(asked, now_s, alone_at_s))
    text = asked.reason
    if asked.signal and asked.with_ranks:
        text = (
            f"{text}: this node leaves once the others run without it; {another(asked.signal)} ends its ranks at once"
        )
    return state, (transitions.say(state, "leave_requested", text), transitions.tell(state, asked))


def stay(state: State, reason: str) -> Outcome:
    if state.leaving is None or state.leaving.is_alone:
        return state, ()
    return msgspec.structs.replace(state, leaving=None), (transitions.say(state, "leave_refused", reason),)


def pass_deadline(state: State, now_s: float) -> Outcome:
    due_s = next_deadline_s(state)
    if due_s is None or now_s < due_s:
        return state, ()
    if state.leaving is not None:
        return leave_alone(state, state.leaving)
    if not _is_unled(state):
        return drop_old_stop(state, now_s)
    return _stop_alone(state, state.stop_signal, state.stop_reason, is_final=state.stop_is_final)


def next_deadline_s(state: State) -> float | None:
    if isinstance(state.phase, phases.Closing | phases.Ended):
        return None
    if state.leaving is not None:
        return state.leaving.alone_at_s
    return _stop_until_s(state)


def _stop_until_s(state: State) -> float | None:
    """Returns until when a stop that was asked for here is kept, or waits for a first leader."""
    if state.stop_at_s is None:
        return None
    if type(state.phase) in _WORKS:
        return state.stop_at_s + STOP_KEPT_IN_CYCLE_S
    if type(state.phase) in _WAITS:
        return state.stop_at_s + (ANSWER_S if _is_unled(state) else STOP_KEPT_S)
    return None


def drop_old_stop(state: State, now_s: float) -> Outcome:
    """Drops a stop that no leader has heard for too long, and says so."""
    after = without_old_stop(state, now_s)
    if after is state or state.stop_at_s is None:
        return state, ()
    passed_s = now_s - state.stop_at_s
    text = f"no leader has heard the stop within {passed_s:.0f} s, and the job goes on: {state.stop_reason}"
    return after, (transitions.say(state, "stop_dropped", text),)


def without_old_stop(state: State, now_s: float) -> State:
    """Returns the state without a stop that no leader has heard for so long that it may stop nothing any more."""
    until_s = _stop_until_s(state)
    if until_s is None or now_s < until_s or _is_unled(state):
        return state
    state = msgspec.structs.replace(
        state, stop_reason="", stop_signal=0, stop_is_final=False, stop_grace_s=None, stop_at_once=False, stop_at_s=None
    )
    return state if state.leaving is not None else msgspec.structs.replace(state, last_signal=0)


def _is_unled(state: State) -> bool:
    """Returns whether this node has never met a leader, and so no other node can know of its part in the job."""
    return not state.has_met_leader and state.cycle < 0


def _stop_alone(state: State, signal: int, reason: str, *, is_final: bool = False) -> Outcome:
    final_code = state.rules.restart.no_restart_exit_code if is_final else None
    verdict = stopped_verdict(
        signal, f"{reason}; no leader of the job has answered", all_succeeded=False, final_code=final_code
    )
    return transitions.conclude(state, verdict)


def waiting(state: State, order: type, now_s: float) -> State:
    """Returns the state after that order or event, with the time for which the node waits for an answer now."""
    leaving = state.leaving
    if leaving is None or leaving.is_alone:
        return state
    if type(state.phase) in _WAITS:
        if order is orders.Resign:
            leaving = msgspec.structs.replace(leaving, alone_at_s=now_s + ANSWER_S)
        elif leaving.alone_at_s is None and (leaving.is_granted or leaving.asked.or_stop):
            # Its ranks have ended; if it leads, it waits for those of the others.
            patience_s = ANSWER_S + state.rules.workers_stop_timeout_s
            leaving = msgspec.structs.replace(leaving, alone_at_s=now_s + patience_s)
    elif order in _ANSWERS:
        leaving = msgspec.structs.replace(leaving, alone_at_s=None, is_granted=True)
    elif order is orders.StartCycle and not leaving.asked.or_stop:
        # The person who drains it has asked a leader that was away.
        leaving = msgspec.structs.replace(leaving, alone_at_s=None, is_granted=False)
    return msgspec.structs.replace(state, leaving=leaving) if leaving is not state.leaving else state


def leave_alone(state: State, leaving: Leaving, *, at_once: bool = False) -> Outcome:
    """Ends this node's part without an answer."""
    asked, phase = leaving.asked, state.phase
    if isinstance(phase, phases.Stopping) and isinstance(phase.then, phases.Leave) and not leaving.is_alone:
        waits = msgspec.structs.replace(leaving, alone_at_s=None)
        return msgspec.structs.replace(state, leaving=waits), ()  # The job ends, with one verdict everywhere.
    state = msgspec.structs.replace(state, leaving=Leaving(asked, leaving.asked_at_s, None, is_alone=True))
    order = worker_messages.KillWorkers() if at_once else transitions.stop_order(state, asked.signal, asked.grace_s)
    match phase:
        case phases.Pending() | phases.Rendezvous() | phases.Down():
            if _is_unled(state):
                return _stop_alone(state, asked.signal, asked.reason)
            return transitions.conclude(state, left_verdict(left_sentence(state.node, asked.reason, is_alone=True)))
        case phases.AwaitingStore() | phases.Starting() | phases.Running() | phases.Finished():
            return transitions.stop_group(state, phases.Leave(), asked.reason, order)
        case phases.Stopping():
            return transitions.enter(state, phases.Stopping(phases.Leave()), asked.reason), (order,)
        case phases.Stopped() | phases.Closing() | phases.Ended():
            waits = msgspec.structs.replace(leaving, alone_at_s=None)
            return msgspec.structs.replace(state, leaving=waits), ()
        case _:
            assert_never(phase)
