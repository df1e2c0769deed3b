"""Which nodes run the next cycle of a job, when, and how does the job end?

One machine for each job, on one node at a time. It opens a round, waits until the nodes have joined, orders the cycle,
and after a fault asks the restart policy. Reports are fenced by cycle: one fault takes one unit of the budget, however
many ranks and nodes it takes down, and what an older cycle reports changes nothing.
"""

from __future__ import annotations

import enum
from typing import assert_never

import msgspec

from supervisor.core.calls import book
from supervisor.core.calls import orders as call_orders
from supervisor.core.calls.words import Interruption, Lost, Told
from supervisor.core.cluster import iteration, restart_policy
from supervisor.core.cluster import messages as cluster_messages
from supervisor.core.cluster.messages import Action, AnnounceRestart, Event, OrderCycle, Publish, ReachVerdict
from supervisor.core.facts import Assignment, JobEvent, JobState, RestartRules, Verdict
from supervisor.core.job_sentences import succeeded_sentence

EARLY_REPORTS_MAX = 1024  # reports that may overtake JobOpened


class MemberState(enum.StrEnum):
    JOINED = "joined"  # ready for the next cycle
    RUNNING = "running"  # its workers run, or are being stopped after an announcement
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # has reported a fault and will join again


class Member(msgspec.Struct, frozen=True):
    state: MemberState
    cycle: int = -1  # the last one that it took part in
    excluded: str = ""  # why it takes part in no later cycle
    lost: tuple[int, ...] = ()  # ranks that a wrapped call has gone on without


# --- phases --------------------------------------------------------------------------------------------------------


class Unopened(msgspec.Struct, frozen=True):
    """Nothing is known of the job's rules; reports that came first wait."""

    early: tuple[Event, ...] = ()


class Gathering(msgspec.Struct, frozen=True):
    """The next cycle's round is open."""

    reason: str
    not_before_s: float | None = None  # back-off
    is_announced: bool = True


class Running(msgspec.Struct, frozen=True):
    started_at_s: float


class Ended(msgspec.Struct, frozen=True):
    verdict: Verdict


Phase = Unopened | Gathering | Running | Ended


class State(msgspec.Struct, frozen=True):
    job_id: str
    phase: Phase = msgspec.field(default_factory=Unopened)
    cycle: int = -1  # the last one ordered
    local_world_size: int = 1
    policy: restart_policy.State = msgspec.field(
        default_factory=lambda: restart_policy.initial_state(RestartRules(), iteration=None)
    )
    members: dict[str, Member] = msgspec.field(default_factory=dict[str, Member])
    calls: book.State | None = None  # of the last cycle; changes in place


Outcome = tuple[State, tuple[Action, ...]]


def initial_state(job_id: str) -> State:
    return State(job_id)


def restarts_used(state: State) -> int:
    return state.policy.used


def current_iteration(state: State) -> int:
    """Of the wrapped call that runs, or was the last one."""
    return state.calls.iteration if state.calls is not None else 0


def step(state: State, event: Event, *, now_s: float, jitter: float) -> Outcome:
    """`jitter` is a random value from 0 to 1."""
    match state.phase:
        case Unopened(early):
            return _open(state, early, event, now_s, jitter)
        case Ended(verdict):
            # Whoever still wants to take part learns how it ended; all others know.
            return state, (ReachVerdict(verdict),) if isinstance(event, cluster_messages.NodeJoined) else ()
        case Gathering() | Running():
            return _step_open(state, event, now_s, jitter)
        case _:
            assert_never(state.phase)


def next_deadline_s(state: State) -> float | None:
    match state.phase:
        case Gathering(not_before_s=not_before_s):
            return not_before_s
        case Running():
            return iteration.next_deadline_s(state.calls) if state.calls is not None else None
        case Unopened() | Ended():
            return None
        case _:
            assert_never(state.phase)


def _open(state: State, early: tuple[Event, ...], event: Event, now_s: float, jitter: float) -> Outcome:
    if not isinstance(event, cluster_messages.JobOpened):
        return msgspec.structs.replace(state, phase=Unopened((*early, event)[-EARLY_REPORTS_MAX:])), ()
    state = msgspec.structs.replace(
        state,
        phase=Gathering("first start"),
        local_world_size=event.local_world_size,
        policy=restart_policy.initial_state(event.rules, iteration=event.iteration),
    )
    actions: tuple[Action, ...] = ()
    for report in early:
        state, more = step(state, report, now_s=now_s, jitter=jitter)
        actions += more
    return state, actions


def _step_open(state: State, event: Event, now_s: float, jitter: float) -> Outcome:
    match event:
        case cluster_messages.JobOpened():
            return state, ()
        case cluster_messages.NodeJoined():
            return _node_joined(state, event, now_s)
        case cluster_messages.NodeFailed():
            return _node_failed(state, event, now_s, jitter)
        case cluster_messages.NodeSucceeded():
            return _node_succeeded(state, event)
        case cluster_messages.CallReport(node, cycle, told):
            if not isinstance(state.phase, Running) or cycle != state.cycle:
                return state, ()
            return _step_calls(state, iteration.Report(node, told), now_s)
        case cluster_messages.NodeExcluded(node, reason):
            known = state.members.get(node, Member(MemberState.FAILED))
            state = _with(state, node, msgspec.structs.replace(known, excluded=reason))
            return _close_round(state, now_s)
        case cluster_messages.StopOrdered(verdict):
            return _end(state, verdict)
        case cluster_messages.RestartOrdered(reason):
            return _restart_ordered(state, reason, now_s)
        case cluster_messages.DeadlineReached():
            return _pass_deadline(state, now_s)
        case _:
            assert_never(event)


# --- rounds --------------------------------------------------------------------------------------------------------


def _node_joined(state: State, event: cluster_messages.NodeJoined, now_s: float) -> Outcome:
    known = state.members.get(event.node)
    if event.cycle > state.cycle or (known is not None and event.cycle < known.cycle):
        return state, ()  # Of another life of the job, or overtaken.
    known = known or Member(MemberState.JOINED)
    # While the cycle runs, its fault may still be under way: joining alone decides nothing.
    return _close_round(_with(state, event.node, msgspec.structs.replace(known, state=MemberState.JOINED)), now_s)


def _close_round(state: State, now_s: float) -> Outcome:
    """Orders the cycle once enough nodes have joined, none still runs the last one, and the delay is over."""
    if not isinstance(state.phase, Gathering):
        return state, ()
    min_nodes = state.policy.rules.min_nodes
    lost = _excluded_verdict(state)
    if lost is not None:
        return _end(state, lost)
    if state.phase.not_before_s is not None or not state.phase.is_announced:
        return state, ()
    ready = sorted(
        node for node, each in state.members.items() if each.state is MemberState.JOINED and not each.excluded
    )
    if len(ready) < min_nodes or any(each.state is MemberState.RUNNING for each in state.members.values()):
        return state, ()
    cycle = state.cycle + 1
    chosen = ready[:min_nodes]
    parts = tuple(
        OrderCycle(
            node,
            Assignment(
                cycle=cycle,
                group_rank=group_rank,
                group_world_size=len(chosen),
                world_size=len(chosen) * state.local_world_size,
                first_rank=group_rank * state.local_world_size,
            ),
            state.phase.reason,
        )
        for group_rank, node in enumerate(chosen)
    )
    members = state.members | {
        node: msgspec.structs.replace(state.members[node], state=MemberState.RUNNING, cycle=cycle) for node in chosen
    }
    calls = iteration.initial_state(len(chosen) * state.local_world_size)
    return msgspec.structs.replace(state, phase=Running(now_s), cycle=cycle, members=members, calls=calls), parts


def _pass_deadline(state: State, now_s: float) -> Outcome:
    match state.phase:
        case Gathering(reason, not_before_s, is_announced) if not_before_s is not None and now_s >= not_before_s:
            state = msgspec.structs.replace(state, phase=Gathering(reason))
            state, orders = _close_round(state, now_s)
            return state, (*(() if is_announced else (AnnounceRestart(state.cycle + 1, reason),)), *orders)
        case Running():
            return _step_calls(state, iteration.DeadlineReached(), now_s)
        case _:
            return state, ()


def _restart_ordered(state: State, reason: str, now_s: float) -> Outcome:
    """A person's wish takes no unit, and ends a delay."""
    match state.phase:
        case Running():
            reason = f"{reason}; restarting at once, no unit of the budget is used"
            announce = AnnounceRestart(state.cycle + 1, reason)
            said = _said(state, "restart_decided", reason)
            return msgspec.structs.replace(state, phase=Gathering(reason)), (said, announce)
        case Gathering(was, _, is_announced):
            state = msgspec.structs.replace(state, phase=Gathering(was))
            state, orders = _close_round(state, now_s)
            return state, (*(() if is_announced else (AnnounceRestart(state.cycle + 1, was),)), *orders)
        case _:
            return state, ()


# --- ends of a cycle -----------------------------------------------------------------------------------------------


def _node_failed(state: State, event: cluster_messages.NodeFailed, now_s: float, jitter: float) -> Outcome:
    known = state.members.get(event.node, Member(MemberState.JOINED))
    if event.cycle > state.cycle or event.cycle < known.cycle:
        return state, ()
    has_joined = known.state is MemberState.JOINED
    takes_part = known.cycle == state.cycle and state.cycle >= 0
    if isinstance(state.phase, Gathering) and takes_part and known.state is MemberState.RUNNING:
        # Down for the fault that opened this round, or by it: no second unit.
        return _with(state, event.node, msgspec.structs.replace(known, state=MemberState.FAILED)), (
            _said(state, "fault_folded", f"{event.reason}; it belongs to the restart that is under way"),
        )
    if isinstance(state.phase, Running) and not takes_part:
        state = _with(state, event.node, msgspec.structs.replace(known, state=MemberState.FAILED))
        return state, (_said(state, "spare_failed", f"node {event.node}, which takes no part: {event.reason}"),)
    # A report that its own NodeJoined has overtaken still finds the node ready for the next cycle.
    is_ready = has_joined and isinstance(state.phase, Running)
    after = MemberState.JOINED if is_ready else MemberState.FAILED
    state = _with(state, event.node, msgspec.structs.replace(known, state=after))
    return _decide(state, event, now_s, jitter)


def _decide(state: State, event: cluster_messages.NodeFailed, now_s: float, jitter: float) -> Outcome:
    """What the restart policy says, as orders."""
    lost = _excluded_verdict(state)
    if lost is not None:
        return _end(state, msgspec.structs.replace(lost, reason=f"{event.reason}; {lost.reason}"))
    runs = isinstance(state.phase, Running)
    fault = restart_policy.FaultHappened(
        node=event.node,
        reason=event.reason,
        healthy_nodes=sum(each.state is MemberState.RUNNING for each in state.members.values()) if runs else 0,
        lived_s=now_s - state.phase.started_at_s if isinstance(state.phase, Running) else None,
        iteration=event.iteration,
        restart_allowed=event.restart_allowed,
        exit_code=event.exit_code,
    )
    policy, decisions = restart_policy.step(state.policy, fault, now_s=now_s, jitter=jitter)
    state = msgspec.structs.replace(state, policy=policy)
    actions: list[Action] = []
    for decision in decisions:
        match decision:
            case restart_policy.Warn(kind, reason):
                actions.append(_said(state, kind, reason))
            case restart_policy.Tolerate(reason):
                actions.append(_said(state, "fault_tolerated", reason))
                state, more = _lose_ranks(state, event.node, event.reason, now_s)
                actions += more
            case restart_policy.GiveUp(verdict):
                state, more = _end(state, verdict)
                actions += more
            case restart_policy.Restart(delay_s, reason):
                actions.append(_said(state, "restart_decided", reason))
                # Running nodes must stop at once; where nothing runs, even a new spawner waits for the delay.
                is_announced = runs or not delay_s
                phase = Gathering(reason, now_s + delay_s if delay_s else None, is_announced)
                state = msgspec.structs.replace(state, phase=phase)
                if is_announced:
                    actions.append(AnnounceRestart(state.cycle + 1, reason))
                state, more = _close_round(state, now_s)
                actions += more
            case _:
                assert_never(decision)
    return state, tuple(actions)


def _node_succeeded(state: State, event: cluster_messages.NodeSucceeded) -> Outcome:
    known = state.members.get(event.node)
    if not isinstance(state.phase, Running) or known is None or known.state is not MemberState.RUNNING:
        return state, ()
    if event.cycle != state.cycle:
        return state, ()
    done = msgspec.structs.replace(known, state=MemberState.SUCCEEDED, lost=event.lost)
    state = _with(state, event.node, done)
    if any(each.state is MemberState.RUNNING for each in state.members.values()):
        return state, (_said(state, "node_succeeded", succeeded_sentence(f"of node {event.node} ", event.lost)),)
    lost = tuple(rank for each in state.members.values() for rank in each.lost if each.cycle == state.cycle)
    return _end(state, Verdict(JobState.SUCCEEDED, 0, succeeded_sentence("", lost)))


# --- wrapped calls -------------------------------------------------------------------------------------------------


def _step_calls(state: State, event: iteration.Event, now_s: float) -> Outcome:
    """What the machine of the cycle's calls decides, as orders."""
    if state.calls is None:
        return state, ()
    is_excluded = any(each.excluded for each in state.members.values())  # Then nothing is started there any more.
    units_left = 0 if is_excluded else restart_policy.units_left(state.policy)
    _, decisions = iteration.step(state.calls, event, now_s=now_s, units_left=units_left)
    actions: list[Action] = []
    for decision in decisions:
        match decision:
            case call_orders.Tell(members, order):
                actions.append(cluster_messages.OrderCall(state.cycle, members, order))
            case call_orders.EndCall(call, stands, reason):
                actions.append(cluster_messages.EndCall(state.cycle, call, stands, reason))
            case call_orders.Say(kind, reason, at, rank, details):
                actions.append(Publish(JobEvent(kind, reason, max(state.cycle, 0), rank, details, at)))
            case call_orders.Replace(lost, takes_unit, reason):
                if takes_unit:
                    state = msgspec.structs.replace(state, policy=restart_policy.take_unit(state.policy))
                used, most = state.policy.used, state.policy.rules.max_restarts
                text = f"{reason}; a new process takes its place, restarts used {used} of {most}"
                at = current_iteration(state)
                actions.append(Publish(JobEvent("rank_replaced", text, max(state.cycle, 0), iteration=at)))
                members = tuple(member for _, member in lost)
                actions.append(cluster_messages.OrderRespawn(state.cycle, members, text))
            case _:
                assert_never(decision)
    return state, tuple(actions)


def _lose_ranks(state: State, node: str, reason: str, now_s: float) -> Outcome:
    """The job goes on without a node: its ranks are lost for the call that the others are in."""
    members = state.calls.members if state.calls is not None else {}
    lost = Lost(Interruption.TERMINATED, reason, failed=False)
    told = tuple(Told(member, lost) for member, each in members.items() if each.node == node)
    return _step_calls(state, iteration.Report(node, told), now_s)


def _excluded_verdict(state: State) -> Verdict | None:
    """The end of a job that an excluded node leaves with too few; None while there are enough."""
    left = sum(not each.excluded for each in state.members.values())
    why = "; ".join(each.excluded for each in state.members.values() if each.excluded)
    if not why or left >= state.policy.rules.min_nodes:
        return None
    reason = f"{why}; {left} nodes are left where {state.policy.rules.min_nodes} are needed"
    return Verdict(JobState.FAILED, 1, reason)


def _end(state: State, verdict: Verdict) -> Outcome:
    return msgspec.structs.replace(state, phase=Ended(verdict)), (ReachVerdict(verdict),)


def _with(state: State, node: str, member: Member) -> State:
    return msgspec.structs.replace(state, members=state.members | {node: member})


def _said(state: State, kind: str, reason: str) -> Publish:
    return Publish(JobEvent(kind, reason, max(state.cycle, 0)))
