"""How does a leader begin a job, or go on with one that another has led?

A part of the machine coordinator.py. The ledger says which cycle was ordered last, whether its fault was counted, and
what the budget is; everything else is what the nodes say. Once all nodes of the cycle have said it, the job goes on
where it stands. A node that says nothing is lost only after TAKE_OVER_S: by then it has ended its own workers.
"""

from __future__ import annotations

import msgspec

from supervisor.core import orders
from supervisor.core.cluster import endings, membership, restart_policy, rounds, wrapped_call
from supervisor.core.cluster import messages as cluster_messages
from supervisor.core.cluster.coordinator_states import (
    Ended,
    Gathering,
    Outcome,
    Running,
    State,
    Stop,
    TakingOver,
    Unopened,
    WindingDown,
    said,
    with_member,
)
from supervisor.core.cluster.membership import Member, MemberState
from supervisor.core.cluster.messages import Action, Event, NodeStands, Send
from supervisor.core.facts import Verdict
from supervisor.core.ledger import Ledger

TAKE_OVER_S = 5.0  # a node that no leader hears has ended its workers by then
EARLY_REPORTS_MAX = 65536  # that may overtake the JobOpened whose rules count
LATER_MAX = 4096  # reports that wait until it is clear how the job stands

Resolved = tuple[State, tuple[Action, ...], tuple[Event, ...]]  # the events are to be taken as if they came now


def initial_state(job_id: str, ledger: Ledger, *, leader: str, now_s: float) -> State:
    """Of the node `leader`, whose decisions are recorded. An empty ledger: the job begins."""
    phase = TakingOver(now_s + TAKE_OVER_S) if ledger != Ledger() else Unopened()
    return State(job_id, leader, phase=phase, cycle=ledger.cycle, recorded=ledger)


def open_job(state: State, phase: Unopened, event: Event, now_s: float) -> Resolved:
    """The first node whose rules count opens the job; what others have reported before is taken then."""
    if isinstance(event, NodeStands):
        if state.recorded is None or event.cycle < 0:
            return state, (), reports_of(event)
        # The job is not new: what was recorded is lost, and the nodes know better.
        state = msgspec.structs.replace(state, phase=TakingOver(now_s + TAKE_OVER_S))
        return state, (), (*phase.early, event)
    if not isinstance(event, cluster_messages.JobOpened) or state.leader not in ("", event.node):
        if len(phase.early) < EARLY_REPORTS_MAX:
            phase.early.append(event)
        return state, (), ()
    members = membership.for_rules(event.rules.rendezvous)
    members.put(event.node, Member(MemberState.OPENED, facts=event.rules.facts))
    policy = restart_policy.initial_state(event.rules.restart, training_iteration=event.training_iteration)
    opened = msgspec.structs.replace(
        state,
        phase=rounds.gathering(event.rules, "first start", now_s),
        rules=event.rules,
        policy=policy,
        members=members,
    )
    return opened, (), tuple(phase.early)


# --- what the next leader will know --------------------------------------------------------------------------------


def with_record(state: State, actions: tuple[Action, ...]) -> Outcome:
    """What was decided is recorded before it is ordered."""
    if state.recorded is None or isinstance(state.phase, Unopened | TakingOver):
        return state, actions
    ledger = ledger_of(state)
    if ledger == state.recorded:
        return state, actions
    return msgspec.structs.replace(state, recorded=ledger), (cluster_messages.Record(ledger), *actions)


def ledger_of(state: State) -> Ledger:
    opened = state.cycle + 1 if isinstance(state.phase, Gathering) else max(state.cycle, 0)
    ledger = Ledger(state.cycle, opened, state.policy.used)
    match state.phase:
        case Ended(verdict) | WindingDown(Verdict() as verdict):
            return msgspec.structs.replace(ledger, verdict=verdict)
        case WindingDown(Stop(signal, reason)):
            return msgspec.structs.replace(ledger, stop_signal=signal, stop_reason=reason)
        case _:
            return ledger


# --- a node that this leader does not know -------------------------------------------------------------------------


def reports_of(stands: NodeStands) -> tuple[Event, ...]:
    """The same in the words of a node that has reported all the time."""
    node, cycle = stands.node, stands.cycle
    opened = cluster_messages.JobOpened(node, stands.rules)
    match stands.state:
        case MemberState.JOINED:
            return opened, cluster_messages.NodeJoined(node, cycle)
        case MemberState.DOWN:
            return opened, cluster_messages.NodeDown(node, cycle)
        case MemberState.STOPPED:
            return opened, cluster_messages.NodeStopped(node, stands.all_succeeded)
        case MemberState.INFORMED:
            return opened, cluster_messages.VerdictTaken(node)
        case _:
            return (opened,)


def meet(state: State, stands: NodeStands) -> Resolved:
    """A node that comes late. What it still runs is of an older cycle, or has been given up: it ends that and waits."""
    known = state.members.get(stands.node)
    if known is not None and known.state not in membership.UNHEARD:
        return state, (), ()
    if stands.state not in (MemberState.RUNNING, MemberState.SUCCEEDED, MemberState.FAILED):
        return state, (), reports_of(stands)
    busy = Member(MemberState.FAILED, stands.cycle, facts=stands.rules.facts)
    text = f"node {stands.node} comes back with workers of cycle {stands.cycle}; they are stopped"
    again = orders.JoinAgain(max(state.cycle, stands.cycle) + 1, text)
    return with_member(state, stands.node, busy), (said(state, "node_returned", text), Send(stands.node, again)), ()


# --- the take-over -------------------------------------------------------------------------------------------------


def take(state: State, phase: TakingOver, event: Event, now_s: float) -> Resolved:
    """Until it is clear how the job stands, reports wait."""
    match event:
        case NodeStands(node):
            phase.stands[node] = event
        case cluster_messages.JobOpened(node, rules):
            phase.stands[node] = NodeStands(node, rules, MemberState.OPENED, cycle=-1)
        case cluster_messages.DeadlineReached():
            if now_s >= phase.until_s and phase.stands:
                return _resolve(state, phase, now_s)
            return state, (), ()
        case _:
            if len(phase.later) < LATER_MAX:
                phase.later.append(event)
            return state, (), ()
    return _resolve(state, phase, now_s) if _is_complete(state, phase) else (state, (), ())


def _is_complete(state: State, phase: TakingOver) -> bool:
    """Whether all nodes of the newest cycle have said how they stand."""
    newest = max(each.cycle for each in phase.stands.values())
    parts = _parts(phase, newest)
    knows_rules = not state.leader or state.leader in phase.stands
    return knows_rules and newest >= max(state.cycle, 0) and bool(parts) and len(parts) == _group_size(parts)


def _parts(phase: TakingOver, cycle: int) -> dict[int, NodeStands]:
    """By group rank."""
    return {
        each.assignment.group_rank: each
        for each in phase.stands.values()
        if each.assignment is not None and each.assignment.cycle == cycle == each.cycle
    }


def _group_size(parts: dict[int, NodeStands]) -> int:
    return max((each.assignment.group_world_size for each in parts.values() if each.assignment is not None), default=0)


def _resolve(state: State, phase: TakingOver, now_s: float) -> Resolved:
    ledger, stands = state.recorded or Ledger(), phase.stands
    cycle = max(ledger.cycle, *(each.cycle for each in stands.values()))
    parts = _parts(phase, cycle)
    rules = stands.get(state.leader, next(iter(stands.values()))).rules
    used = max(ledger.restarts_used, *(each.restarts_used for each in stands.values()))
    policy = restart_policy.initial_state(rules.restart, training_iteration=None)
    group_size = _group_size(parts) or rules.restart.min_nodes
    members = membership.for_rules(rules.rendezvous)
    for node, each in stands.items():
        members.put(node, _member(each, cycle))
    state = msgspec.structs.replace(
        state,
        cycle=cycle,
        rules=rules,
        policy=msgspec.structs.replace(policy, used=used),
        members=members,
        calls=wrapped_call.initial_state(group_size * rules.local_world_size),
    )
    missing = tuple(rank for rank in range(group_size) if rank not in parts)
    later = tuple(phase.later)
    if ledger.verdict is not None or ledger.stop_signal is not None:
        outcome = ledger.verdict or Stop(ledger.stop_signal or 0, ledger.stop_reason)
        state = msgspec.structs.replace(state, parts=tuple(parts[rank].node for rank in sorted(parts)))
        state, actions = endings.wind_down(state, outcome, now_s)
        return state, actions, later
    if ledger.opened > cycle or _never_began(stands, cycle, missing):
        return *_gather(state, stands, now_s), later
    return *_run(state, parts, missing, now_s), *_with_faults(parts, missing, cycle, later)


def _member(stands: NodeStands, cycle: int) -> Member:
    """One that still runs an older cycle than the others is told to stop."""
    facts, took_part = stands.rules.facts, stands.assignment is not None
    if stands.cycle < cycle and stands.state in membership.BUSY:
        return Member(MemberState.FAILED, stands.cycle, facts=facts)
    part = stands.cycle if took_part else -1
    return Member(stands.state, part, lost=stands.lost, all_succeeded=stands.all_succeeded, facts=facts)


def _never_began(stands: dict[str, NodeStands], cycle: int, missing: tuple[int, ...]) -> bool:
    """The order has not reached the nodes that wait for it: no fault of theirs."""
    waiting = sum(
        each.state is MemberState.JOINED and each.assignment is not None and each.cycle < cycle
        for each in stands.values()
    )
    return cycle < 0 or 0 < len(missing) <= waiting


def _gather(state: State, stands: dict[str, NodeStands], now_s: float) -> Outcome:
    """The restart was decided, and its unit taken, before the take-over."""
    reason = next((each.reason for each in stands.values() if each.reason), "the job was being restarted")
    state = msgspec.structs.replace(state, phase=rounds.gathering(state.rules, reason, now_s))
    text = f"the leader is new; the nodes join cycle {state.cycle + 1}"
    announced = rounds.announce(state, reason) if state.cycle >= 0 else ()
    state, closed = rounds.close_round(state, now_s)
    return state, (said(state, "leader_changed", text), *announced, *closed)


def _run(state: State, parts: dict[int, NodeStands], missing: tuple[int, ...], now_s: float) -> Outcome:
    """The cycle runs on; a part that is missing is still in it, until it is taken for lost."""
    names = {rank: each.node for rank, each in parts.items()} | {rank: _absentee(rank) for rank in missing}
    actions: list[Action] = []
    for node, member in list(state.members.items()):
        if member.cycle < state.cycle and member.state in membership.BUSY:
            actions.append(Send(node, orders.JoinAgain(state.cycle + 1, "the others have begun a newer cycle")))
    for name in names.values():
        known = state.members.get(name) or Member(MemberState.RUNNING)
        state.members.put(name, Member(MemberState.RUNNING, state.cycle, facts=known.facts))
    store = next((each for each in parts.values() if each.store_host), None)
    use = orders.UseStore(state.cycle, store.store_host, store.store_port) if store is not None else None
    told = tuple(Send(each.node, use) for each in parts.values() if use is not None and each is not store)
    text = f"the leader is new; cycle {state.cycle} goes on, {len(parts)} of {len(names)} nodes are there"
    ordered = tuple(names[rank] for rank in sorted(names))
    state = msgspec.structs.replace(state, phase=Running(now_s), parts=ordered, store=use)
    return state, (said(state, "leader_changed", text), *told, *actions)


def _absentee(group_rank: int) -> str:
    """Nobody who is left knows its name."""
    return f"of group rank {group_rank}"


def _with_faults(
    parts: dict[int, NodeStands],
    missing: tuple[int, ...],
    cycle: int,
    later: tuple[Event, ...],
) -> tuple[tuple[Event, ...]]:
    """What the nodes had met and no leader has decided upon yet: the first of it is the fault."""
    events: list[Event] = []
    for each in parts.values():
        node = each.node
        if each.state in (MemberState.FAILED, MemberState.JOINED, MemberState.DOWN):
            reason = each.reason or f"node {node} has stopped its workers"
            failed = cluster_messages.NodeFailed(
                node, cycle, reason, restart_allowed=each.restart_allowed, first_failure=each.first_failure
            )
            events.append(failed)
        if each.state is MemberState.SUCCEEDED:
            events.append(cluster_messages.NodeSucceeded(node, cycle, each.lost))
        events += reports_of(each)[1:]
    for rank in missing:
        text = f"the node of group rank {rank} is lost: it has not said how it stands to the new leader"
        events.append(cluster_messages.NodeLost(_absentee(rank), text))
    return ((*events, *later),)
