"""How does a leader begin a job, or continue one that another has led?

A part of the machine coordinator.py. The ledger says which cycle was ordered last and on which nodes, whether its fault
was counted, and what the budget is; the nodes report everything else. Once all nodes of the cycle have reported, the
job continues where it is. replacement_fence.py says from when on a silent node counts as lost.
"""

from __future__ import annotations

import msgspec

from supervisor.core import fencing_epochs, orders
from supervisor.core.cluster import (
    cluster_messages,
    inherited_cycle,
    job_termination,
    leader_resignation,
    lost_node_replacement,
    missed_reports,
    missing_nodes,
    node_states,
    rendezvous_round,
    replacement_fence,
    restart_policy,
)
from supervisor.core.cluster.cluster_messages import (
    Action,
    Event,
    LeadershipTaken,
    LeaveAsked,
    NodeCordoned,
    NodeExcluded,
    NodeStands,
    Send,
    StopAsked,
)
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
    start_order,
    with_member,
    with_parts,
)
from supervisor.core.cluster.inherited_cycle import InheritedCycle
from supervisor.core.cluster.node_states import Member, MemberState
from supervisor.core.facts import JobState, Verdict
from supervisor.core.fence_times import TAKE_OVER_S
from supervisor.core.leader_ledger import Ledger

EARLY_REPORTS_MAX = 65536  # reports that may overtake the JobOpened whose rules count
LATER_MAX = 4096  # reports that wait until the job's state is clear
ENDS_AS_BEFORE = (
    "an earlier run of the job was ending when its nodes were lost, so this run ends the same way; "
    "start the job again for a new run"
)

_OfNode = (
    cluster_messages.NodeJoined | cluster_messages.NodeFailed | cluster_messages.NodeDown | NodeExcluded | NodeCordoned
    | cluster_messages.NodeSucceeded | cluster_messages.NodeStopped | cluster_messages.VerdictTaken | LeaveAsked
    | cluster_messages.NodeSilent | cluster_messages.NodeHeard
)  # fmt: skip
Resolved = tuple[State, tuple[Action, ...], tuple[Event, ...]]  # the events are then handled as if they came now


def initial_state(job_id: str, taken: LeadershipTaken, *, leader: str, now_s: float) -> State:
    """Returns the first state of `leader`, whose decisions are recorded. With an empty ledger, the job begins."""
    ledger = taken.ledger
    former = taken.former or ledger.former
    phase = TakingOver(now_s + TAKE_OVER_S, previous_term=taken.previous_term)
    if ledger == Ledger():
        waits = former is None and taken.others_may_train
        phase = Unopened(now_s + TAKE_OVER_S if waits else 0.0)
    return State(
        job_id,
        leader,
        taken.term,
        phase=phase,
        cycle=ledger.cycle,
        resigned=ledger.resigned,
        recorded=ledger,
        former=former,
        epoch=ledger.epoch,
        leaving=ledger.leaving,
    )


def open_job(state: State, phase: Unopened, event: Event, now_s: float) -> Resolved:
    """Lets the first node whose rules count open the job; earlier reports of others are handled then."""
    if isinstance(event, NodeStands):
        if _missed_the_end(state, event):
            return state, _told_of_the_end(state, event), ()
        if state.recorded is None or event.cycle < 0:
            return rendezvous_round.held_back(state, event, now_s), (), missed_reports.of_newcomer(event)
        # The job is not new: its record is lost, and the nodes know better.
        state = msgspec.structs.replace(state, phase=TakingOver(now_s + TAKE_OVER_S))
        return state, (), (*phase.early, event)
    if not isinstance(event, cluster_messages.JobOpened) or state.leader not in ("", event.node):
        if len(phase.early) < EARLY_REPORTS_MAX:
            phase.early.append(event)
        return state, (), ()
    members = node_states.for_rules(event.rules.rendezvous)
    members.put(event.node, Member(MemberState.OPENED, facts=event.rules.facts))
    policy = restart_policy.initial_state(event.rules.restart, training_iteration=event.training_iteration)
    opened = msgspec.structs.replace(
        state,
        phase=msgspec.structs.replace(
            rendezvous_round.gathering(event.rules, "first start", now_s, is_first=True),
            orders_from_s=phase.until_s if phase.until_s > now_s else None,
        ),
        rules=event.rules,
        policy=policy,
        members=members,
        own_epoch=fencing_epochs.next_epoch(state.epoch, began_at_ms=event.rules.facts.submitted_at_ms),
    )
    return opened, (), tuple(phase.early)


# --- what the next leader will know --------------------------------------------------------------------------------


def with_record(state: State, actions: tuple[Action, ...]) -> Outcome:
    """Puts a record of the decisions before the orders."""
    if state.recorded is None or isinstance(state.phase, Unopened | TakingOver):
        return state, actions
    ledger = ledger_of(state)
    if ledger == state.recorded:
        return state, actions
    return msgspec.structs.replace(state, recorded=ledger), (cluster_messages.Record(ledger), *actions)


def ledger_of(state: State) -> Ledger:
    witnesses = () if state.leader in state.resigned else state.members.witnesses  # It answers nobody afterwards.
    opened = state.cycle + 1 if isinstance(state.phase, Gathering) else max(state.cycle, 0)
    ledger = Ledger(
        state.cycle, opened, state.policy.used,
        parts=state.parts, processes=state.processes, witnesses=witnesses, resigned=state.resigned,
        term=state.term, leader=state.leader, former=state.former, epoch=state.epoch,
        leaving=state.leaving, vacant=state.vacant,
    )  # fmt: skip
    match state.phase:
        case Ended(verdict):
            return msgspec.structs.replace(ledger, verdict=verdict)
        case WindingDown(Verdict() as verdict, may_be_stop_until_s=until_s):
            return msgspec.structs.replace(ledger, verdict=verdict, may_be_stop=until_s is not None)
        case WindingDown(Stop(signal, reason, is_final=is_final)):
            return msgspec.structs.replace(ledger, stop_signal=signal, stop_reason=reason, stop_is_final=is_final)
        case _:
            return ledger


# --- a node that this leader does not know -------------------------------------------------------------------------


def meet(state: State, stands: NodeStands, now_s: float) -> Resolved:
    """Handles a late node. What it still runs is outdated or given up, so it ends that and waits."""
    if isinstance(state.phase, Gathering) and stands.cycle > state.cycle and not _missed_the_end(state, stands):
        return _begin_again(state, stands, now_s)
    known = state.members.get(stands.node)
    if known is not None and known.state not in node_states.UNHEARD:
        return state, (), ()
    if _missed_the_end(state, stands):
        return state, _told_of_the_end(state, stands), ()
    granted = known.leaves if known is not None and stands.leave is not None else ""  # It was lost before it had left.
    if stands.state not in (MemberState.RUNNING, MemberState.SUCCEEDED, MemberState.FAILED):
        was_lost = known is not None and known.state is MemberState.LOST
        told = (said(state, "node_returned", f"node {stands.node} comes back"),) if was_lost else ()
        if granted:
            leaving = Member(MemberState.OPENED, leaves=granted, facts=stands.rules.facts)
            return with_member(state, stands.node, leaving), told, missed_reports.of_node(stands)
        return rendezvous_round.held_back(state, stands, now_s), told, missed_reports.of_newcomer(stands)
    busy = Member(
        MemberState.FAILED, stands.cycle, excluded=stands.excluded, cordoned=stands.cordoned, leaves=granted,
        facts=stands.rules.facts,
    )  # fmt: skip
    text = f"node {stands.node} comes back with workers of cycle {stands.cycle}; they are stopped"
    again = orders.JoinAgain(max(state.cycle, stands.cycle) + 1, text)
    state = with_member(state, stands.node, busy)
    return state, (said(state, "node_returned", text), Send(stands.node, again)), missed_reports.asked_of(stands)


def _begin_again(state: State, stands: NodeStands, now_s: float) -> Resolved:
    """Takes over what the nodes have: the ledger was lost, or is older than what this one runs."""
    phase = TakingOver(now_s + TAKE_OVER_S)
    kept: list[Event] = []
    for node, each in state.members.items():
        if each.state in node_states.UNHEARD:
            continue
        rules = msgspec.structs.replace(state.rules, facts=each.facts)
        phase.stands[node] = NodeStands(node, rules, each.state, each.cycle, restarts_used=state.policy.used)
        phase.left_at_s[node] = now_s
        kept += (NodeExcluded(node, each.excluded),) if each.excluded else ()
        kept += (NodeCordoned(node, each.cordoned),) if each.cordoned else ()
        kept += (LeaveAsked(node, each.leaves, with_ranks=True),) if each.leaves else ()
        kept += (cluster_messages.NodeSilent(node),) if each.is_silent else ()
    kept += state.leaves_asked
    text = f"node {stands.node} knows cycle {stands.cycle}, of which the ledger says nothing; the nodes know better"
    state = msgspec.structs.replace(state, phase=phase, leaves_asked=())
    return state, (said(state, "leader_changed", text),), (stands, *kept)


def _missed_the_end(state: State, stands: NodeStands) -> bool:
    """Returns whether the node belongs to the previous run and does not know its end."""
    return state.former is not None and 0 < stands.met_term <= state.former.term


def _told_of_the_end(state: State, stands: NodeStands) -> tuple[Action, ...]:
    if state.former is None:
        return ()
    text = f"node {stands.node} belongs to the run before, which has ended; it learns how"
    return said(state, "node_refused", text), Send(stands.node, orders.Conclude(state.former.verdict))


# --- the take-over -------------------------------------------------------------------------------------------------


def take(state: State, phase: TakingOver, event: Event, now_s: float) -> Resolved:
    """Handles an event of the take-over. Reports wait until the job's state is clear."""
    match event:
        case NodeStands() if _missed_the_end(state, event):
            return state, _told_of_the_end(state, event), ()
        case NodeStands(node):
            _forget(phase, node, is_lost=False)
            phase.stands[node] = event
            phase.left_at_s[node] = now_s - event.left_ago_s
            phase.heard_at_s[node] = now_s - event.heard_ago_s
        case cluster_messages.JobOpened(node, rules):
            phase.stands[node] = NodeStands(node, rules, MemberState.OPENED, cycle=-1)
            phase.left_at_s[node] = now_s
        case cluster_messages.NodeLost(node):  # As if it had never come; it may come again.
            phase.stands.pop(node, None)
            _forget(phase, node, is_lost=True)
            return state, (), ()
        case cluster_messages.DeadlineReached():
            pass
        case _:
            if len(phase.later) < LATER_MAX:
                phase.later.append(event)
            return state, (), ()
    if not phase.stands:
        return state, (), ()
    replaces_from_s = replacement_fence.from_s(state.recorded or Ledger(), phase)
    if _is_complete(state, phase, now_s) or (replaces_from_s is not None and now_s >= replaces_from_s):
        return _resolve(state, phase, now_s)
    return *_wait(state, phase, now_s), ()


def _forget(phase: TakingOver, node: str, *, is_lost: bool) -> None:
    """Drops the node's waiting reports, which its next NodeStands includes. A stop that a lost node asked for stays."""
    phase.later[:] = [
        each for each in phase.later
        if not isinstance(each, _OfNode) or each.node != node or (is_lost and _asks_for_stop(each))
    ]  # fmt: skip


def next_deadline_s(state: State, phase: TakingOver) -> float | None:
    if not phase.stands:
        return None
    if _is_complete(state, phase, phase.until_s):
        return phase.until_s
    replaces_from_s = replacement_fence.from_s(state.recorded or Ledger(), phase)
    if replaces_from_s is not None:
        return replaces_from_s
    return _gives_up_s(phase) if phase.is_told else phase.until_s


def _gives_up_s(phase: TakingOver) -> float:
    return phase.until_s + max(each.rules.rendezvous.join_timeout_s for each in phase.stands.values())


def _wait(state: State, phase: TakingOver, now_s: float) -> Outcome:
    """Waits, because no witness has come: the previous leader's nodes may still train, unheard here."""
    if now_s < phase.until_s or replacement_fence.from_s(state.recorded or Ledger(), phase) is not None:
        return state, ()
    text, way_out = _why_it_waits(state.recorded.witnesses if state.recorded is not None else ())
    if now_s >= _gives_up_s(phase):
        # Not recorded: only these nodes' attempt ends, and the job may continue elsewhere.
        verdict = Verdict(JobState.FAILED, 1, f"{text}; {way_out}")
        ended = Ended(verdict, now_s + job_termination.VERDICT_S)
        for node, each in phase.stands.items():
            state.members.put(node, Member(MemberState.OPENED, facts=each.rules.facts))
        told = tuple(Send(node, orders.Conclude(verdict)) for node in phase.stands)
        return msgspec.structs.replace(state, phase=ended, recorded=None), told
    if phase.is_told:
        return state, ()
    state = msgspec.structs.replace(state, phase=msgspec.structs.replace(phase, is_told=True))
    waits = said(state, "rendezvous_waits", f"{text}; nothing new begins before one has")
    state, resigns = _resigned(state, phase)
    return state, (waits, *resigns)


def _resigned(state: State, phase: TakingOver) -> Outcome:
    """Gives up the lead if other nodes may hear those that this one waits for."""
    if state.recorded is None or state.leader not in phase.stands:
        return state, ()
    witnesses = state.recorded.witnesses
    if witnesses and phase.stands.keys().isdisjoint(witnesses):
        state, resigns = leader_resignation.unheard(state, missing_nodes.names(witnesses))
    else:
        needed = phase.stands[state.leader].rules.restart.min_nodes
        known = {*phase.stands, *state.recorded.parts, *witnesses}
        state, resigns = leader_resignation.resigned(state, known, heard=len(phase.stands), needed=needed)
    if not resigns:
        return state, ()
    recorded = msgspec.structs.replace(state.recorded or Ledger(), resigned=state.resigned)
    return msgspec.structs.replace(state, recorded=recorded), (cluster_messages.Record(recorded), *resigns)


def _why_it_waits(witnesses: tuple[str, ...]) -> tuple[str, str]:
    """Returns the sentence for people, and the remedy."""
    if not witnesses:
        text = (
            "the job has ended, or still runs on other nodes: its ledger is lost, nothing of it runs on the nodes that"
        )
        return f"{text} have reached the new leader, and the others are missing", "start the job again if it has to run"
    had = missing_nodes.names(witnesses)
    text = f"the job may still run on the nodes that it had ({had}): none of them has reached the new leader"
    return text, "start one of them again, or another --rdzv-id, or delete the job's ledger if they are dead"


def _is_complete(state: State, phase: TakingOver, now_s: float) -> bool:
    """Returns whether the rules that count are known, and all nodes of the newest cycle have reported their state.

    If the backend has lost data, nodes that have not reported may know a newer cycle, unless this one is at work. By
    `until_s`, they report it or have ended their workers.
    """
    if state.leader and state.leader not in phase.stands:
        return False
    ledger = state.recorded or Ledger()
    inherited = inherited_cycle.find(ledger, phase.stands)
    has_lost = inherited.may_be_beyond(ledger, state.term)
    return inherited.is_complete and (not has_lost or inherited.is_at_work or now_s >= phase.until_s)


def _resolve(state: State, phase: TakingOver, now_s: float) -> Resolved:
    ledger, stands = state.recorded or Ledger(), phase.stands
    inherited = inherited_cycle.find(ledger, stands)
    cycle, names, parts = inherited.number, inherited.names, inherited.parts
    rules = stands.get(state.leader, next(iter(stands.values()))).rules
    used = max(ledger.restarts_used, *(each.restarts_used for each in stands.values()))
    policy = restart_policy.initial_state(rules.restart, training_iteration=None)
    group_size = inherited.size or rules.restart.min_nodes
    known = (each.assignment.epoch for each in stands.values() if each.assignment is not None)
    epoch = max(state.epoch, ledger.epoch, *known)
    members = node_states.for_rules(rules.rendezvous)
    for name in names:
        members.put(name, Member(MemberState.LOST, cycle))
    for node, each in stands.items():
        members.put(node, _member(each, cycle))
    state = msgspec.structs.replace(
        state,
        cycle=cycle,
        rules=rules,
        policy=msgspec.structs.replace(policy, used=used),
        members=members,
        vacant=tuple(inherited.vacant.values()),
        others_until_s=phase.until_s,
        epoch=epoch,
        leaving=state.leaving if cycle == state.cycle else (),
        own_epoch=fencing_epochs.next_epoch(epoch, began_at_ms=rules.facts.submitted_at_ms),
    )
    state, missing = with_parts(state, names), inherited.missing(group_size)
    leaves = tuple(each.leave for each in stands.values() if each.leave is not None)
    later = (*phase.later, *leaves)
    outcome = _outcome(ledger, inherited, state.term)
    if outcome is not None:
        state = with_parts(state, names or tuple(parts[rank].node for rank in sorted(parts)))
        state, actions = job_termination.wind_down(state, outcome, now_s, may_be_stop=ledger.may_be_stop)
        is_of_this_run = any(each.met_term for each in stands.values())
        told = () if is_of_this_run else (said(state, "leader_changed", ENDS_AS_BEFORE),)
        return state, (*told, *actions), later
    if ledger.opened > cycle or cycle < 0 or inherited_cycle.never_began(stands, inherited, missing):
        return *_gather(state, stands, now_s, closes=not leaves), later
    if inherited.has_succeeded:  # That was decided already, but its record is lost.
        return *job_termination.wind_down(state, job_termination.succeeded_verdict(inherited.lost), now_s), later
    absent = {rank: inherited.absentee(rank, stands) for rank in missing}
    left_ago_s = now_s - min((phase.left_at_s[each.node] for each in parts.values()), default=now_s)
    kept_out = tuple(event for each in inherited.waiting.values() for event in missed_reports.kept_out(each))
    missed = missed_reports.of_cycle(parts, absent, cycle, left_ago_s)
    # A stop comes before the faults: the scheduler that asks for it may have ended the ranks, too.
    first = tuple(each for each in later if _asks_for_stop(each))
    rest = tuple(each for each in later if not _asks_for_stop(each))
    return *_run(state, inherited, absent, now_s), (*first, *kept_out, *missed, *rest)


def _asks_for_stop(event: Event) -> bool:
    return isinstance(event, StopAsked) or (isinstance(event, LeaveAsked) and event.or_stop)


def _outcome(ledger: Ledger, inherited: InheritedCycle, term: int) -> Verdict | Stop | None:
    """Returns how the job is ending, by the ledger, by what a leader told a node, or by a stop that no leader heard."""
    if ledger.verdict is not None and not ledger.may_be_stop:
        return ledger.verdict
    if ledger.stop_signal is not None:
        return Stop(ledger.stop_signal, ledger.stop_reason, is_final=ledger.stop_is_final)
    asked = (
        Stop(each.stop_signal, each.stop_reason, is_final=each.stop_is_final)
        for each in inherited.parts.values()
        if each.stop_reason
    )
    return inherited.verdict_beyond(ledger, term) or next(asked, ledger.verdict)


def _member(stands: NodeStands, cycle: int) -> Member:
    """Returns the node's membership. A node that still runs an older cycle is told to stop."""
    facts, took_part = stands.rules.facts, stands.assignment is not None
    if stands.cycle < cycle and stands.state in node_states.BUSY:
        state, part, lost = MemberState.FAILED, stands.cycle, ()
    else:
        state, part, lost = stands.state, stands.cycle if took_part else -1, stands.lost
    return Member(
        state, part, excluded=stands.excluded, cordoned=stands.cordoned, lost=lost,
        all_succeeded=stands.all_succeeded, facts=facts,
    )  # fmt: skip


def _gather(state: State, stands: dict[str, NodeStands], now_s: float, *, closes: bool) -> Outcome:
    """Opens the round of a restart that was decided, and counted, before the take-over."""
    reason = next((each.reason for each in stands.values() if each.reason), "the job was being restarted")
    state = msgspec.structs.replace(state, phase=rendezvous_round.gathering(state.rules, reason, now_s))
    text = f"the leader is new; the nodes join cycle {state.cycle + 1}"
    announced = rendezvous_round.announce(state, reason) if state.cycle >= 0 else ()
    state, closed = rendezvous_round.close_round(state, now_s) if closes else (state, ())
    return state, (said(state, "leader_changed", text), *announced, *closed)


def _run(state: State, inherited: InheritedCycle, absent: dict[int, str], now_s: float) -> Outcome:
    """Continues the cycle. A missing part still belongs to it until it counts as lost."""
    parts, waiting, vacant = inherited.parts, inherited.waiting, inherited.vacant
    names = {rank: each.node for rank, each in (parts | waiting).items()} | absent
    actions: list[Action] = []
    present = set(names.values())
    for node, member in list(state.members.items()):
        if member.state in node_states.BUSY and (member.cycle < state.cycle or node not in present):
            actions.append(Send(node, orders.JoinAgain(state.cycle + 1, "the others have gone on without it")))
            earlier = min(member.cycle, state.cycle - 1)  # Its faults are not this cycle's.
            state.members.put(node, msgspec.structs.replace(member, state=MemberState.FAILED, cycle=earlier))
    for name in names.values():
        known = state.members.get(name) or Member(MemberState.RUNNING)
        state.members.put(name, Member(MemberState.RUNNING, state.cycle, facts=known.facts))
    store = next((each for each in parts.values() if each.store_host), None)
    use = orders.UseStore(state.cycle, store.store_host, store.store_port) if store is not None else None
    there = len(parts) + len(waiting)
    text = f"the leader is new; cycle {state.cycle} goes on, {there} of {len(names)} nodes are there"
    text += f", {len(waiting)} of them begin it now" if waiting else ""
    text += f"; it goes on without {missing_nodes.names(sorted(vacant.values()))}, as before" if vacant else ""
    names |= vacant
    state = with_parts(state, tuple(names[rank] for rank in sorted(names)))
    state = lost_node_replacement.inherit(msgspec.structs.replace(state, phase=Running(now_s), store=use))
    begun = tuple(Send(names[rank], start_order(state, rank, text)) for rank in waiting)
    others = (each.node for each in (parts | waiting).values() if each is not store)
    told = tuple(Send(node, use) for node in others if use is not None)
    return state, (said(state, "leader_changed", text), *begun, *told, *actions)
