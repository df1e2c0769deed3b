"""May a node leave a job that goes on, and when?

A part of the machine coordinator.py. A node without ranks leaves at once. One with ranks leaves once the other nodes
run without it: the job restarts there, and no restart of the budget is used. Before the first cycle, every node counts
as one with ranks. A leader that was not elected stays, since the job ends with it. An elected one first gives up the
lead. If other nodes are needed and one of them does not answer just now, the answer waits until that one is heard or
lost: after a stall, a leader hears its nodes one after the other. A new leader that lacks nodes waits until the last
leader's nodes have had the time to come. What one leader has granted holds for the next one.
"""

from __future__ import annotations

import msgspec

from supervisor.core import orders
from supervisor.core.cluster import job_termination, leader_resignation, rendezvous_round
from supervisor.core.cluster.active_and_spare_nodes import place
from supervisor.core.cluster.cluster_messages import (
    Action,
    Event,
    JobOpened,
    LeaveAsked,
    NodeFailed,
    NodeStands,
    NodeStopped,
    Send,
    VerdictTaken,
)
from supervisor.core.cluster.coordinator_states import (
    Gathering,
    Outcome,
    Running,
    State,
    Stop,
    WindingDown,
    said,
    takes_part,
    with_member,
)
from supervisor.core.cluster.node_states import BUSY, PRESENT, UNHEARD, Member, MemberState
from supervisor.core.facts import JobState, Verdict
from supervisor.core.stop_verdict import left_sentence, left_verdict


def ask(state: State, event: LeaveAsked, now_s: float) -> Outcome:
    """Lets the node leave, now or once its ranks have ended; otherwise the node learns why it stays."""
    node, known = event.node, state.members.get(event.node)
    if known is None or known.state in UNHEARD or known.leaves:
        return state, ()
    waiting = tuple(each for each in state.leaves_asked if each.node != node)
    state = msgspec.structs.replace(state, leaves_asked=waiting)
    why_not = _hindrance(state, event)
    if not why_not and (why_not := _missing_without(state, event)) and _may_others_come(state, now_s):
        return msgspec.structs.replace(state, leaves_asked=(*waiting, event)), ()
    if why_not:
        return _kept(state, event, why_not, now_s)
    if _is_needed(state, event):
        state = msgspec.structs.replace(state, leaving=(*state.leaving, node))
    state = with_member(state, node, msgspec.structs.replace(known, leaves=event.reason))
    if isinstance(state.phase, Running) and known.state in BUSY and takes_part(state, node):
        text = f"node {node} leaves the job ({event.reason}); restarting at once, which uses no restart of the budget"
        state = msgspec.structs.replace(state, phase=rendezvous_round.gathering(state.rules, text, now_s))
        return state, (said(state, "node_leaves", text), *rendezvous_round.announce(state, text))
    state, actions = let_go(state, (), node)
    state, more = rendezvous_round.close_round(state, now_s)
    return state, (*actions, *more)


def ask_again(state: State, actions: tuple[Action, ...], event: Event, now_s: float) -> Outcome:
    """Answers the requests that have waited, once another node has come, or none is awaited any more.

    If the job fails meanwhile, it is stopped instead where a request wants that: it came first.
    """
    has_come = isinstance(event, NodeStands | JobOpened)
    is_open = isinstance(state.phase, Gathering | Running)
    if not state.leaves_asked or (is_open and _may_others_come(state, now_s) and not has_come):
        return state, actions
    asked, state = state.leaves_asked, msgspec.structs.replace(state, leaves_asked=())
    if not is_open:
        return _stop_instead(state, actions, asked, now_s)
    for each in asked:
        if isinstance(state.phase, Gathering | Running):
            state, more = ask(state, each, now_s)
            actions += more
    return state, actions


def _stop_instead(state: State, actions: tuple[Action, ...], asked: tuple[LeaveAsked, ...], now_s: float) -> Outcome:
    """Stops the job that has just failed, if one of these requests wants that; no node has its orders yet."""
    stop = next((each for each in asked if each.or_stop and state.members[each.node].state not in UNHEARD), None)
    match state.phase:
        case WindingDown(Verdict(JobState.FAILED)) if stop is not None:
            others = tuple(
                each for each in actions if not isinstance(each, Send) or not isinstance(each.order, orders.WindDown)
            )
            state, stops = job_termination.wind_down(state, job_termination.outcome_asked(state, stop), now_s)
            return state, (*others, *stops)
        case _:
            return state, actions


def next_deadline_s(state: State, *others_s: float | None) -> float | None:
    """Returns the earliest of these deadlines and that of the requests that wait."""
    own_s = state.others_until_s if state.leaves_asked and not state.members.awaited else None
    return min((each_s for each_s in (own_s, *others_s) if each_s is not None), default=None)


def let_go(state: State, actions: tuple[Action, ...], node: str) -> Outcome:
    """Releases an excluded or leaving node once nothing runs there. The leader's own node must wait for more."""
    known = state.members.get(node)
    if (
        known is None
        or node == state.leader
        or not isinstance(state.phase, Gathering | Running)
        or not (known.excluded or known.leaves)
        or known.state in (*BUSY, *UNHEARD)
    ):
        return state, actions
    state = with_member(state, node, msgspec.structs.replace(known, state=MemberState.REFUSED))
    reason = left_sentence(node, known.leaves) if known.leaves else f"{known.excluded}; the job goes on without it"
    return state, (*actions, Send(node, orders.Conclude(left_verdict(reason))))


def turn_away(state: State, node: str, reason: str, verdict: Verdict) -> Outcome:
    """Ends the job on this node alone."""
    state = with_member(state, node, Member(MemberState.REFUSED, refused=reason))
    return state, (said(state, "node_refused", reason), Send(node, orders.Conclude(verdict)))


def can_do_without(state: State, event: NodeFailed, known: Member) -> bool:
    """Returns whether a node that cannot run its command, and has no part in the last cycle, came to others."""
    may_have_ranks = known.cycle >= 0 and known.state in BUSY  # of an older cycle
    if event.restart_allowed or known.cycle >= state.cycle or may_have_ranks:
        return False
    others = (each for node, each in state.members.items() if node != event.node and not each.excluded)
    return any(each.state in PRESENT for each in others)


def refuse(state: State, event: NodeFailed, known: Member, now_s: float) -> Outcome:
    """Handles a node that cannot run its command, unlike those that ran a cycle: it takes part in none."""
    text = f"node {event.node} takes no part in the job: {event.reason}"
    if event.node == state.leader:  # It leads on; an elected one gives up the lead.
        state = with_member(state, event.node, msgspec.structs.replace(known, excluded=text))
        actions: tuple[Action, ...] = (said(state, "spare_failed", text),)
    else:
        verdict = Verdict(JobState.FAILED, event.exit_code, event.reason)
        state, actions = turn_away(state, event.node, text, verdict)
    state, more = rendezvous_round.close_round(state, now_s)
    return state, (*actions, *more)


def ended_alone(state: State, event: NodeStopped | VerdictTaken, now_s: float) -> Outcome:
    """Handles a node that has ended the job by itself, after a defect or because it knew no leader.

    If it may have ranks that the others need or wait for, the job ends everywhere: its own report of the fault may have
    been fenced. Before the first cycle, no node has any. An elected leader gives up the lead, because its supervisor
    leads no job that has ended there.
    """
    node, known = event.node, state.members.get(event.node)
    if isinstance(event, NodeStopped) or known is None or known.state in UNHEARD:
        return state, ()  # From a refused node.
    has_part = known.cycle == state.cycle and takes_part(state, node)
    is_waited_for = isinstance(state.phase, Gathering) and known.state in BUSY
    leads = node == state.leader
    if has_part or is_waited_for or (leads and state.recorded is None):
        state = with_member(state, node, Member(MemberState.STOPPED))
        verdict = Verdict(JobState.FAILED, 1, f"node {node} has given up the job")
        return job_termination.wind_down(state, verdict, now_s)
    why = "it has ended its part by itself"
    state = with_member(state, node, msgspec.structs.replace(known, state=MemberState.REFUSED, refused=why))
    text = f"node {node} has ended its part by itself; the job goes on without it"
    state, actions = rendezvous_round.close_round(state, now_s)
    actions = (said(state, "node_refused", text), *actions)
    if not leads or not isinstance(state.phase, Gathering | Running):
        return state, actions
    state, resigns = leader_resignation.leaving(state, why)
    return state, (*actions, *resigns)


def after(state: State, actions: tuple[Action, ...]) -> Outcome:
    """Adds that an elected leader whose node leaves, or is excluded, gives up the lead once the job runs without it."""
    known = state.members.get(state.leader)
    if known is None or not (why := known.leaves or known.excluded) or known.state in BUSY:
        return state, actions
    if state.recorded is None or not isinstance(state.phase, Running):
        return state, actions
    state, more = leader_resignation.leaving(state, why)
    return state, (*actions, *more)


def _hindrance(state: State, event: LeaveAsked) -> str:
    """Returns why the node can't leave, whichever others are there; "": nothing says so."""
    if event.node == state.leader and state.recorded is None:
        return "it leads the job, which ends with it; with --rdzv-backend etcd any node may leave"
    return "it holds ranks of the job" if _is_needed(state, event) and not event.with_ranks else ""


def _is_needed(state: State, event: LeaveAsked) -> bool:
    """Returns whether the node has a part. A cycle may go on without it, but the round after that may need it."""
    has_part = takes_part(state, event.node) if isinstance(state.phase, Running) else event.node in state.parts
    return event.node not in state.leaving and (state.cycle < 0 or has_part)


def _missing_without(state: State, event: LeaveAsked) -> str:
    """Returns what a cycle without the node lacks; "": nothing."""
    if not _is_needed(state, event):
        return ""
    rules, needed = state.rules.rendezvous, state.policy.rules.min_nodes
    others = {node: each.facts for node, each in state.members.items() if node != event.node and each.may_join}
    if place(others, rules, wanted=needed, before=state.parts) is not None:
        return ""
    remedy = f"start a spare node first, or end the job: holdfast stop {state.job_id}"
    if len(others) >= needed:
        return f"the other nodes don't fill the segments or replacement groups of a cycle; {remedy}"
    has = f"{len(others)} other node{' is' if len(others) == 1 else 's are'} there"
    kept = [node for node, each in state.members.items() if node != event.node and each.cordoned]
    cordoned = f" beside {', '.join(kept)}, cordoned" if kept else ""
    return f"{has}{cordoned}, and a cycle needs {needed}; {remedy}"


def _may_others_come(state: State, now_s: float) -> bool:
    return state.members.awaited > 0 or now_s < state.others_until_s


def _kept(state: State, event: LeaveAsked, why_not: str, now_s: float) -> Outcome:
    if event.or_stop:
        is_told = event.with_ranks and len(state.members) > 1
        reason = f"{event.reason}; node {event.node} cannot leave the job: {why_not}" if is_told else event.reason
        return job_termination.wind_down(state, Stop(event.signal, reason, event.grace_s), now_s)
    text = f"cannot take node {event.node} out of job {state.job_id}: {why_not}"
    known = state.members.get(event.node)
    if known is not None and known.cordoned:
        text += f"; as it is cordoned, a restart waits for another node, or for holdfast uncordon {event.node}"
    return state, (Send(event.node, orders.Stay(text)),)
