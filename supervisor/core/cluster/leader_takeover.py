"""How does a leader begin a job, or continue one that another has led?

A part of the machine coordinator.py. The ledger says which cycle was ordered last and on which nodes, whether its fault
was counted, and what the budget is; the nodes report everything else. Once all nodes of the cycle have reported, the
job continues where it is (takeover_resolution.py). replacement_fence.py says from when on a silent node counts as lost.
"""

from __future__ import annotations

from typing import get_args

import msgspec

from supervisor.core import fencing_epochs, orders
from supervisor.core.cluster import (
    cluster_messages,
    inherited_cycle,
    job_termination,
    leader_resignation,
    missed_reports,
    missing_nodes,
    node_states,
    rendezvous_round,
    replacement_fence,
    restart_policy,
    takeover_resolution,
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
    State,
    Stop,
    TakingOver,
    Unopened,
    WindingDown,
    said,
    with_member,
)
from supervisor.core.cluster.node_states import Member, MemberState
from supervisor.core.cluster.takeover_resolution import Resolved
from supervisor.core.facts import JobState, Verdict
from supervisor.core.fence_times import TAKE_OVER_S
from supervisor.core.leader_ledger import Ledger

EARLY_REPORTS_MAX = 65536  # reports that may overtake the JobOpened whose rules count
WAITING_MAX = 1024  # events of one node, beside those below, that wait until the job's state is clear

# How a node stands: of each kind, one event of a node waits, so none of them is ever left out.
_OfNode = (
    cluster_messages.NodeJoined | cluster_messages.NodeFailed | cluster_messages.NodeDown | NodeExcluded | NodeCordoned
    | cluster_messages.NodeSucceeded | cluster_messages.NodeStopped | cluster_messages.VerdictTaken | LeaveAsked
    | cluster_messages.NodeSilent | cluster_messages.NodeHeard
)  # fmt: skip
_OF_NODE = tuple(each.__name__ for each in get_args(_OfNode))


def initial_state(job_id: str, taken: LeadershipTaken, *, leader: str, now_s: float) -> State:
    """Returns the first state of `leader`, whose decisions are recorded. With an empty ledger, the job begins."""
    ledger = taken.ledger
    former = taken.former or ledger.former
    phase: TakingOver | Unopened = _taking_over(ledger, now_s, previous_term=taken.previous_term)
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
        state = msgspec.structs.replace(state, phase=_taking_over(state.recorded, now_s))
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
        stop_at_once=isinstance(state.phase, WindingDown) and state.phase.at_once,
    )  # fmt: skip
    match state.phase:
        case Ended(verdict):
            return msgspec.structs.replace(ledger, verdict=verdict)
        case WindingDown(Verdict() as verdict, may_be_stop_until_s=until_s):
            return msgspec.structs.replace(ledger, verdict=verdict, may_be_stop=until_s is not None)
        case WindingDown(Stop(signal, reason, grace_s, is_final)):
            return msgspec.structs.replace(
                ledger, stop_signal=signal, stop_reason=reason, stop_grace_s=grace_s, stop_is_final=is_final
            )
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
    ledger = state.recorded or Ledger()
    phase, kept = _taking_over(ledger, now_s), list[Event]()
    for node, each in state.members.items():
        if each.state in node_states.UNHEARD:
            continue
        rules = msgspec.structs.replace(state.rules, facts=each.facts)
        known = NodeStands(node, rules, each.state, each.cycle, restarts_used=state.policy.used)
        phase = _with_report(phase, known, ledger)
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


def _taking_over(ledger: Ledger, now_s: float, *, previous_term: int = 0) -> TakingOver:
    missing = dict.fromkeys(node for node in ledger.parts if node not in ledger.vacant)
    return TakingOver(now_s + TAKE_OVER_S, previous_term=previous_term, missing=missing)


def take(state: State, phase: TakingOver, event: Event, now_s: float) -> Resolved:
    """Handles an event of the take-over. Reports wait until the job's state is clear."""
    ledger = state.recorded or Ledger()
    match event:
        case NodeStands() if _missed_the_end(state, event):
            return state, _told_of_the_end(state, event), ()
        case NodeStands(node):
            _forget(phase, node, is_lost=False)
            phase = _with_report(phase, event, ledger)
            phase.left_at_s[node] = now_s - event.left_ago_s
            phase.heard_at_s[node] = now_s - event.heard_ago_s
        case cluster_messages.JobOpened(node, rules):
            phase = _with_report(phase, NodeStands(node, rules, MemberState.OPENED, cycle=-1), ledger)
            phase.left_at_s[node] = now_s
        case cluster_messages.NodeLost(node):  # As if it had never come; it may come again.
            _forget(phase, node, is_lost=True)
            phase.beyond.pop(node, None)
            if phase.stands.pop(node, None) is not None and node in ledger.parts and node not in ledger.vacant:
                phase.missing[node] = None
            return state, (), ()
        case cluster_messages.DeadlineReached():
            pass
        case StopAsked():
            phase = _with_stop(phase, event)
        case _:
            _keep(phase, event)
            return state, (), ()
    state = msgspec.structs.replace(state, phase=phase)
    if not phase.stands:
        return state, (), ()
    replaces_from_s = replacement_fence.from_s(ledger, phase)
    if _is_complete(state, phase, now_s) or (replaces_from_s is not None and now_s >= replaces_from_s):
        return takeover_resolution.resolve(state, phase, now_s)
    return *_wait(state, phase, now_s), ()


def _with_report(phase: TakingOver, stands: NodeStands, ledger: Ledger) -> TakingOver:
    """Adds what a node has reported. It costs the same however many nodes the job has."""
    node = stands.node
    phase.stands[node] = stands
    phase.missing.pop(node, None)
    phase.beyond.pop(node, None)
    if stands.cycle > ledger.cycle:
        phase.beyond[node] = None
    stop = next(iter(missed_reports.stop_of(stands)), None)
    return phase if stop is None else _with_stop(phase, stop)


def _with_stop(phase: TakingOver, stop: StopAsked) -> TakingOver:
    """Adds a stop. After the first one, only a command or a kill asks for more."""
    if phase.stop is None:
        return msgspec.structs.replace(phase, stop=stop)
    if (stop.is_final or stop.at_once) and stop != phase.stop:
        _keep(phase, stop)
    return phase


def _keep(phase: TakingOver, event: Event) -> None:
    """Has an event wait. Of the first failure of a node, any other one is a consequence."""
    if isinstance(event, _OfNode):
        key = f"{type(event).__name__} {event.node}"
        if not (isinstance(event, cluster_messages.NodeFailed) and key in phase.waiting):
            phase.waiting.pop(key, None)
            phase.waiting[key] = event
        return
    node = str(getattr(event, "node", ""))
    number = phase.waiting_of.get(node, 0)
    if number < WAITING_MAX:
        phase.waiting_of[node] = number + 1
        phase.waiting[f"{number} {node}"] = event


def _forget(phase: TakingOver, node: str, *, is_lost: bool) -> None:
    """Drops the node's waiting reports, which its next NodeStands includes. A stop that a lost node asked for stays.

    A request to leave with its ranks is none: the person wanted the job to go on, and the node has left it.
    """
    for kind in _OF_NODE:
        event = phase.waiting.get(f"{kind} {node}")
        stays = is_lost and isinstance(event, LeaveAsked) and event.or_stop and not event.with_ranks
        if event is not None and not stays:
            del phase.waiting[f"{kind} {node}"]


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
    ledger = state.recorded or Ledger()
    if (state.leader and state.leader not in phase.stands) or not _may_be_complete(ledger, phase):
        return False
    inherited = inherited_cycle.find(ledger, phase.stands)
    has_lost = inherited.may_be_beyond(ledger, state.term)
    return inherited.is_complete and (not has_lost or inherited.is_at_work or now_s >= phase.until_s)


def _may_be_complete(ledger: Ledger, phase: TakingOver) -> bool:
    """Returns whether as many nodes have reported as the newest cycle has.

    To find out more costs a look at all nodes, which is too much for each report of a large job.
    """
    if ledger.parts and not phase.beyond:
        return not phase.missing
    nodes = [phase.stands[node] for node in phase.beyond] or list(phase.stands.values())
    newest = max(each.cycle for each in nodes)
    sizes = (each.assignment.group_world_size for each in nodes if each.cycle == newest and each.assignment is not None)
    return len(phase.stands) >= max(sizes, default=1)
