"""Which nodes run the next cycle of a job, when, and how does the job end?

Each job has one such machine, on one node at a time. It opens a round, waits until the nodes have joined, orders the
cycle, and after a fault asks the restart policy. A stop, a verdict and the evidence of a hang concern the whole job, so
they are decided here and ordered on every node. Reports are fenced by cycle: those of an older cycle change nothing.
coordinator_states.py has the states, job_termination.py the job's end, which every node must learn of.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core import orders
from supervisor.core.cluster import (
    call_orders,
    cluster_messages,
    coordinator_announcements,
    exit_deadlock,
    hang_evidence,
    hang_precedence,
    job_termination,
    leader_resignation,
    leader_takeover,
    lost_node_replacement,
    node_departure,
    node_states,
    rendezvous_round,
    restart_policy,
    settings_agreement,
    suspected_nodes,
    wrapped_call,
)
from supervisor.core.cluster.cluster_messages import Action, Event, Send
from supervisor.core.cluster.coordinator_states import (
    Ended,
    Gathering,
    Outcome,
    Running,
    State,
    TakingOver,
    Unopened,
    WindingDown,
    active_nodes,
    said,
    takes_part,
    with_failure,
    with_member,
    without,
)
from supervisor.core.cluster.node_states import BUSY, Member, MemberState
from supervisor.core.facts import JobState, Verdict
from supervisor.core.job_text import succeeded_sentence
from supervisor.core.wrapped_calls import call_actions


def initial_state(job_id: str, *, leader: str = "") -> State:
    """Starts without nodes. `leader`: the node that this runs on, whose rules count; "": those of the first node."""
    return State(job_id, leader)


def restarts_used(state: State) -> int:
    return state.policy.used


def current_iteration(state: State) -> int:
    """Returns the iteration of the wrapped call that runs, or of the last one."""
    return state.calls.iteration if state.calls is not None else 0


def step(state: State, event: Event, *, now_s: float, jitter: float) -> Outcome:
    """Takes one event. `jitter` is a random value from 0 to 1."""
    if isinstance(event, cluster_messages.NodeStands) and leader_resignation.is_outranked(state, event):
        return leader_resignation.outranked(state)
    decided = node_departure.ask_again(*_step(state, event, now_s, jitter), event, now_s)
    decided = node_departure.after(*leader_resignation.after(*decided))
    return leader_takeover.with_record(*coordinator_announcements.with_announcements(state, *decided))


def _step(state: State, event: Event, now_s: float, jitter: float) -> Outcome:
    match state.phase:
        case Gathering() | Running():
            settled = _settle_hang(*_step_open(state, event, now_s, jitter), now_s, jitter)
            return rendezvous_round.call_back(*settled, event)
        case Unopened():
            return _go_on(leader_takeover.open_job(state, state.phase, event, now_s), now_s, jitter)
        case TakingOver():
            return _go_on(leader_takeover.take(state, state.phase, event, now_s), now_s, jitter)
        case Ended():
            return job_termination.step_ended(state, state.phase, event, now_s)
        case WindingDown():
            return job_termination.step_winding_down(state, state.phase, event, now_s)
        case _:
            assert_never(state.phase)


def _go_on(resolved: leader_takeover.Resolved, now_s: float, jitter: float) -> Outcome:
    state, actions, events = resolved
    for event in events:
        state, more = _step(state, event, now_s, jitter)
        if isinstance(event, cluster_messages.NodeLost) and not event.node.startswith(node_states.ABSENTEE):
            actions += (coordinator_announcements.node_lost(event),)
        actions += more
    return state, actions


def next_deadline_s(state: State) -> float | None:
    match state.phase:
        case Gathering():
            return node_departure.next_deadline_s(state, rendezvous_round.next_deadline_s(state, state.phase))
        case Running():
            of_calls_s = wrapped_call.next_deadline_s(state.calls) if state.calls is not None else None
            of_hang_s = hang_evidence.next_deadline_s(state.evidence), hang_precedence.next_deadline_s(state)
            return node_departure.next_deadline_s(state, of_calls_s, *of_hang_s)
        case WindingDown(until_s=until_s, may_be_stop_until_s=undecided_until_s):
            return until_s if undecided_until_s is None else undecided_until_s
        case Ended(until_s=until_s):
            return None if job_termination.is_over(state) else until_s
        case TakingOver():
            return leader_takeover.next_deadline_s(state, state.phase)
        case Unopened():
            return None
        case _:
            assert_never(state.phase)


def _step_open(state: State, event: Event, now_s: float, jitter: float) -> Outcome:
    match event:
        case cluster_messages.JobOpened():
            return _node_opened(state, event)
        case cluster_messages.NodeJoined() | cluster_messages.NodeDown():
            return _node_emptied(state, event, now_s, jitter)
        case cluster_messages.NodeFailed():
            return _node_failed(state, event, now_s, jitter)
        case cluster_messages.NodeLost():
            return _node_lost(state, event, now_s, jitter)
        case cluster_messages.NodeSucceeded():
            return _node_succeeded(state, event, now_s)
        case cluster_messages.StoreServed():
            return _store_served(state, event)
        case cluster_messages.CallReport():
            return _step_calls(state, event, now_s, jitter)
        case cluster_messages.StacksWanted() | cluster_messages.StacksTaken():
            return _step_evidence(state, event, now_s)
        case cluster_messages.WorkersLinger():
            return exit_deadlock.ask(state, event, now_s)
        case (
            cluster_messages.NodeExcluded() | cluster_messages.NodeCordoned() | cluster_messages.NodeSilent()
            | cluster_messages.NodeHeard()
        ):  # fmt: skip
            state, actions = rendezvous_round.keep_out(state, event)
            state, more = _use_ready(state, now_s, jitter)
            return node_departure.let_go(state, (*actions, *more), event.node)
        case (
            cluster_messages.StopAsked() | cluster_messages.LeaveAsked() | cluster_messages.RestartAsked()
            | cluster_messages.JobForbidden()
        ):  # fmt: skip
            return _take_request(state, event, now_s)
        case cluster_messages.DeadlineReached():
            return _pass_deadline(state, now_s, jitter)
        case cluster_messages.NodeStands():
            return _go_on(leader_takeover.meet(state, event, now_s), now_s, jitter)
        case cluster_messages.NodeStopped() | cluster_messages.VerdictTaken():
            return node_departure.ended_alone(state, event, now_s)
        case _:
            assert_never(event)


def _take_request(
    state: State,
    request: cluster_messages.StopAsked | cluster_messages.LeaveAsked | cluster_messages.RestartAsked
    | cluster_messages.JobForbidden,
    now_s: float,
) -> Outcome:  # fmt: skip
    match request:
        case cluster_messages.StopAsked() | cluster_messages.JobForbidden():
            return job_termination.wind_down(state, job_termination.outcome_asked(state, request), now_s)
        case cluster_messages.LeaveAsked():
            return node_departure.ask(state, request, now_s)
        case cluster_messages.RestartAsked(reason):
            return _restart_asked(state, reason, now_s)
        case _:
            assert_never(request)


def _node_opened(state: State, event: cluster_messages.JobOpened) -> Outcome:
    """Handles a newcomer. Only a newcomer that disagrees learns of it: the others agree and continue."""
    known = state.members.get(event.node)
    if known is not None and known.state not in node_states.UNHEARD:
        return state, ()
    reason = settings_agreement.refusal(event.node, event.rules, state.rules, state.members)
    if not reason:
        return with_member(state, event.node, Member(MemberState.OPENED, facts=event.rules.facts)), ()
    return node_departure.turn_away(state, event.node, reason, Verdict(JobState.FAILED, 1, reason))


# --- rounds --------------------------------------------------------------------------------------------------------


def _node_emptied(
    state: State, event: cluster_messages.NodeJoined | cluster_messages.NodeDown, now_s: float, jitter: float
) -> Outcome:
    known = state.members.get(event.node) or Member(MemberState.JOINED)
    if event.cycle > state.cycle or event.cycle < known.cycle or known.state is MemberState.REFUSED:
        return state, ()  # From another run of the job, or outdated.
    # While the cycle runs, its fault may still be under way: joining alone decides nothing.
    if joins := isinstance(event, cluster_messages.NodeJoined):
        known = known.with_cause(event.cause, now_s)
    emptied = MemberState.JOINED if joins else MemberState.DOWN
    known = msgspec.structs.replace(known, state=emptied, cycle=event.cycle)
    return node_departure.let_go(*_use_ready(with_member(state, event.node, known), now_s, jitter), event.node)


def _use_ready(state: State, now_s: float, jitter: float) -> Outcome:
    """Has the ready nodes take part where they are needed: in the round, or in a wrapped call's vacant part."""
    offer = lost_node_replacement.offer(state)
    return rendezvous_round.close_round(state, now_s) if offer is None else _step_calls(state, offer, now_s, jitter)


def _store_served(state: State, event: cluster_messages.StoreServed) -> Outcome:
    """Tells the other nodes of the cycle where the store is."""
    if not isinstance(state.phase, Running) or event.cycle != state.cycle:
        return state, ()
    use = orders.UseStore(event.cycle, event.host, event.port)
    state = msgspec.structs.replace(state, store=use)
    return state, tuple(Send(node, use) for node in active_nodes(state) if node != event.node)


def _pass_deadline(state: State, now_s: float, jitter: float) -> Outcome:
    match state.phase:
        case Gathering():
            return rendezvous_round.pass_deadline(state, state.phase, now_s)
        case Running():
            state, taken = _step_evidence(state, cluster_messages.DeadlineReached(), now_s)
            state, more = _step_calls(state, cluster_messages.DeadlineReached(), now_s, jitter)
            return state, (*taken, *more)
        case _:
            return state, ()


def _restart_asked(state: State, reason: str, now_s: float) -> Outcome:
    """Handles an operator's request, which uses no restart and ends a delay."""
    match state.phase:
        case Running():
            reason = f"{reason}; restarting at once, which uses no restart of the budget"
            decided = said(state, "restart_decided", reason)
            state = msgspec.structs.replace(state, phase=rendezvous_round.gathering(state.rules, reason, now_s))
            return state, (decided, *rendezvous_round.announce(state, reason))
        case Gathering():
            return rendezvous_round.end_delay(state, state.phase, now_s)
        case _:
            return state, ()


# --- ends of a cycle -----------------------------------------------------------------------------------------------


def _node_failed(state: State, event: cluster_messages.NodeFailed, now_s: float, jitter: float) -> Outcome:
    waits = hang_precedence.came_first(state, event)
    return (hang_precedence.wait(state, event), ()) if waits else _take_fault(state, event, now_s, jitter)


def _take_fault(state: State, event: cluster_messages.NodeFailed, now_s: float, jitter: float) -> Outcome:
    """Handles a fault. It uses one restart of the budget, however many ranks and nodes it takes down."""
    known = state.members.get(event.node) or Member(MemberState.JOINED)
    if event.cycle > state.cycle or event.cycle < known.cycle or known.state is MemberState.REFUSED:
        return state, ()
    if node_departure.can_do_without(state, event, known):
        return node_departure.refuse(state, event, known, now_s)
    # A node lost to the others may still have to report how its part of the cycle ended.
    is_of_cycle = known.cycle == state.cycle and state.cycle >= 0
    has_part = is_of_cycle and known.state is not MemberState.LOST
    is_folded = isinstance(state.phase, Gathering) and is_of_cycle and known.state in (*BUSY, MemberState.LOST)
    if is_folded and event.restart_allowed:
        # Down because of the fault that opened this round: no second restart.
        return with_member(state, event.node, msgspec.structs.replace(known, state=MemberState.FAILED)), (
            _folded(state, event),
        )
    if event.restart_allowed and rendezvous_round.can_do_without(state, event.node):
        return rendezvous_round.set_aside(state, event, known)
    if isinstance(state.phase, Running) and not (has_part and takes_part(state, event.node)):
        state = with_member(state, event.node, msgspec.structs.replace(known, state=MemberState.FAILED))
        return state, (said(state, "spare_failed", f"node {event.node}, which takes no part: {event.reason}"),)
    may_wait = isinstance(state.phase, Running) and event.restart_allowed
    is_waiting = may_wait and lost_node_replacement.is_waiting(state, event.node)
    state = with_member(state, event.node, msgspec.structs.replace(known, state=MemberState.FAILED))
    if is_waiting:  # The others continue without its ranks.
        lost = lost_node_replacement.gone(state, event.node, event.reason)
        state, actions = _step_calls(lost_node_replacement.vacate(state, event.node), lost, now_s, jitter)
        return state, (said(state, "replacement_lost", event.reason), *actions)
    return _decide(state, event, now_s, jitter)


def _folded(state: State, failed: cluster_messages.NodeFailed) -> Action:
    return said(state, "fault_folded", f"{failed.reason}; it belongs to the restart that is under way")


def _settle_hang(state: State, actions: tuple[Action, ...], now_s: float, jitter: float) -> Outcome:
    """Decides on failures that a hang has held back, once the hang is over. They belong to its restart, if any."""
    state, waited = hang_precedence.settle(state, now_s)
    for failed in waited:
        more: tuple[Action, ...] = ()
        if isinstance(state.phase, Running):
            state, more = _decide(state, failed, now_s, jitter)
        elif isinstance(state.phase, Gathering):
            more = (_folded(state, failed),)
        actions += more
    return state, actions


def _node_lost(state: State, event: cluster_messages.NodeLost, now_s: float, jitter: float) -> Outcome:
    """Handles a lost node like a fault of its workers, except that nothing of it is left to wait for."""
    known = state.members.get(event.node)
    if known is None or known.state in node_states.UNHEARD:
        return (without(state, event) if known is not None and known.state is MemberState.LOST else state), ()
    actions: tuple[Action, ...] = ()
    if known.state in BUSY and lost_node_replacement.is_survived(state, event.node):
        return _lose_node_in_call(state, event, now_s, jitter)
    if known.state in BUSY and (takes_part(state, event.node) or not isinstance(state.phase, Running)):
        failed = cluster_messages.NodeFailed(event.node, known.cycle, event.reason)
        state, actions = _take_fault(state, failed, now_s, jitter)
        actions = tuple(each for each in actions if not isinstance(each, Send) or each.node != event.node)
    else:
        actions = (said(state, "node_lost", event.reason),)
    if isinstance(state.phase, WindingDown):
        state, more = job_termination.step_winding_down(state, state.phase, event, now_s)
    else:
        state, more = rendezvous_round.close_round(without(state, event), now_s)
    return state, (*actions, *more)


def _lose_node_in_call(state: State, event: cluster_messages.NodeLost, now_s: float, jitter: float) -> Outcome:
    """Removes the node's ranks from the call, which continues on the other nodes. A spare may take their place."""
    may_come_again = lost_node_replacement.find_spare(state, instead_of=event.node) is not None
    lost = lost_node_replacement.gone(state, event.node, event.reason, may_come_again=may_come_again)
    state = lost_node_replacement.note(without(state, event), event)
    state, actions = _step_calls(state, lost, now_s, jitter)
    offer = lost_node_replacement.offer(state)
    state, more = _step_calls(state, offer, now_s, jitter) if offer is not None else (state, ())
    return state, (said(state, "node_lost", f"{event.reason}; the wrapped call goes on without it"), *actions, *more)


def _decide(state: State, event: cluster_messages.NodeFailed, now_s: float, jitter: float) -> Outcome:
    """Returns what the restart policy decides, as orders."""
    state = with_failure(state, event, now_s)
    lost = rendezvous_round.excluded_verdict(state, now_s, 1 if event.restart_allowed else event.exit_code)
    if lost is not None:
        verdict = msgspec.structs.replace(lost, reason=f"{event.reason}; {lost.reason}")
        return job_termination.wind_down(with_failure(state, event, now_s, ends_job=True), verdict, now_s)
    runs = isinstance(state.phase, Running)
    fault = restart_policy.FaultHappened(
        node=event.node,
        reason=event.reason,
        healthy_nodes=rendezvous_round.healthy_nodes(state, without=event.node),
        lived_s=now_s - state.phase.started_at_s if isinstance(state.phase, Running) else None,
        training_iteration=event.training_iteration,
        restart_allowed=event.restart_allowed,
        exit_code=event.exit_code,
    )
    policy, decisions = restart_policy.step(state.policy, fault, now_s=now_s, jitter=jitter)
    state = msgspec.structs.replace(state, policy=policy)
    actions: list[Action] = []
    for decision in decisions:
        more: tuple[Action, ...] = ()
        match decision:
            case restart_policy.Warn(kind, reason):
                if kind != suspected_nodes.NODE_SUSPECTED or len(state.members) > 1:  # A single node has no peer.
                    actions.append(said(state, kind, reason))
            case restart_policy.Tolerate(reason):
                actions.append(said(state, "fault_tolerated", reason))
                gone = lost_node_replacement.gone(state, event.node, event.reason)
                state, more = _step_calls(lost_node_replacement.vacate(state, event.node), gone, now_s, jitter)
            case restart_policy.GiveUp(verdict):
                may_be_stop = event.may_be_stop and event.restart_allowed
                state = with_failure(state, event, now_s, ends_job=True)
                state, more = job_termination.wind_down(state, verdict, now_s, may_be_stop=may_be_stop)
            case restart_policy.Restart(delay_s, reason):
                # Running nodes must stop at once; where nothing runs, even a new spawner waits for the delay.
                is_announced = runs or not delay_s
                phase = rendezvous_round.gathering(
                    state.rules, reason, now_s, delay_s=delay_s, is_announced=is_announced,
                    before=state.phase, may_be_stop=event.may_be_stop,
                )  # fmt: skip
                if not event.may_be_stop:
                    actions.append(said(state, "restart_decided", reason))
                state = msgspec.structs.replace(state, phase=phase)
                if is_announced:
                    actions += rendezvous_round.announce(state, reason)
                state, more = rendezvous_round.close_round(state, now_s)
            case _:
                assert_never(decision)
        actions += more
    return state, tuple(actions)


def _node_succeeded(state: State, event: cluster_messages.NodeSucceeded, now_s: float) -> Outcome:
    known = state.members.get(event.node)
    if not isinstance(state.phase, Running) or known is None or known.state is not MemberState.RUNNING:
        return state, ()
    if event.cycle != state.cycle:
        return state, ()
    done = msgspec.structs.replace(known, state=MemberState.SUCCEEDED, lost=event.lost)
    state = with_member(state, event.node, done)
    if state.members.count(MemberState.RUNNING) or hang_precedence.is_awaited(state):
        return state, (said(state, "node_succeeded", succeeded_sentence(f"of node {event.node} ", event.lost)),)
    verdict = job_termination.succeeded_verdict(lost_node_replacement.lost_ranks(state))
    return job_termination.wind_down(state, verdict, now_s)


# --- hangs and wrapped calls ---------------------------------------------------------------------------------------


def _step_evidence(state: State, event: hang_evidence.Event, now_s: float) -> Outcome:
    if not isinstance(event, cluster_messages.DeadlineReached) and event.cycle != state.cycle:
        return state, ()
    if isinstance(event, cluster_messages.StacksTaken) and exit_deadlock.awaits(state, event):
        return exit_deadlock.answer(state, event, now_s)
    nodes: tuple[str, ...] = ()
    if isinstance(event, cluster_messages.StacksWanted):
        if not isinstance(state.phase, Running):
            return state, ()  # Its workers are being stopped for another reason.
        state = hang_precedence.found(state, event, now_s)
        if isinstance(state.evidence, hang_evidence.Quiet):
            nodes = tuple(node for node in active_nodes(state) if state.members[node].state is MemberState.RUNNING)
    taken, actions = hang_evidence.step(state.evidence, event, now_s=now_s, cycle=state.cycle, nodes=nodes)
    return msgspec.structs.replace(state, evidence=taken), actions


def _step_calls(state: State, event: wrapped_call.Event, now_s: float, jitter: float) -> Outcome:
    """Returns what the machine of the cycle's calls decides, as orders."""
    if state.calls is None:
        return state, ()
    if isinstance(event, cluster_messages.CallReport) and (
        not isinstance(state.phase, Running) or event.cycle != state.cycle
    ):
        return state, ()
    # While an excluded node takes part, nothing is started any more: the next cycle begins without it.
    units_left = 0 if state.members.leaving else restart_policy.units_left(state.policy)
    _, decided = wrapped_call.step(state.calls, event, now_s=now_s, units_left=units_left)
    actions: list[Action] = []
    for decision in decided:
        match decision:
            case call_actions.Replace(_, takes_unit):
                if takes_unit:
                    state = msgspec.structs.replace(state, policy=restart_policy.take_unit(state.policy))
                on_living = lost_node_replacement.on_living(state, decision)
                state, filled = lost_node_replacement.fill(state, decision)
                actions += (*call_orders.replace(state, on_living), *filled)
            case call_actions.EndCall():
                actions += call_orders.carry(state, decision)
                state, stands = lost_node_replacement.settle(state, decision)
                if stands is not None:
                    failed = cluster_messages.NodeFailed(stands.node, state.cycle, stands.reason)
                    state, more = _decide(state, failed, now_s, jitter)
                    actions += more
            case call_actions.Tell() | call_actions.Say():
                actions += call_orders.carry(state, decision)
            case _:
                assert_never(decision)
    return state, tuple(actions)
