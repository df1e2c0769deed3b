"""How does a job go on once its new leader knows what its nodes do?

A part of the take-over (leader_takeover.py), which ends here: the job ends as was decided or asked for, the round of a
restart opens again, or the cycle continues. What the previous leader missed is then handled as if it came now.
"""

from __future__ import annotations

import msgspec

from supervisor.core import fencing_epochs, orders
from supervisor.core.cluster import (
    inherited_cycle,
    job_termination,
    lost_node_replacement,
    missed_reports,
    missing_nodes,
    node_departure,
    node_states,
    rendezvous_round,
    restart_policy,
    settings_agreement,
)
from supervisor.core.cluster.cluster_messages import (
    Action,
    Event,
    LeaveAsked,
    NodeExcluded,
    NodeStands,
    Send,
    StopAsked,
)
from supervisor.core.cluster.coordinator_states import (
    Outcome,
    Running,
    State,
    Stop,
    TakingOver,
    said,
    start_order,
    with_member,
    with_parts,
)
from supervisor.core.cluster.inherited_cycle import InheritedCycle
from supervisor.core.cluster.node_states import Member, MemberState
from supervisor.core.facts import JobRules, JobState, Verdict
from supervisor.core.leader_ledger import Ledger

ENDS_AS_BEFORE = (
    "an earlier run of the job was ending when its nodes were lost, so this run ends the same way; "
    "start the job again for a new run"
)

Resolved = tuple[State, tuple[Action, ...], tuple[Event, ...]]  # the events are then handled as if they came now


def resolve(state: State, phase: TakingOver, now_s: float) -> Resolved:
    """Ends the take-over: enough is known, or the nodes that have not reported count as lost."""
    ledger, stands = state.recorded or Ledger(), phase.stands
    inherited = inherited_cycle.find(ledger, stands)
    cycle, parts, rules = inherited.number, inherited.parts, _rules(state.leader, stands, inherited)
    missing = inherited.missing(inherited.size or rules.restart.min_nodes)
    is_open = ledger.opened > cycle or cycle < 0 or inherited_cycle.never_began(stands, inherited, missing)
    asked = _asked(state, phase, inherited, is_open=is_open)
    outcome = _outcome(ledger, inherited, state.term, asked)
    state, refused = _with_nodes(state, phase, inherited, rules, refuses=outcome is None)
    leaves = tuple(each.leave for each in stands.values() if each.leave is not None)
    excluded = tuple(NodeExcluded(each.node, each.excluded) for each in stands.values() if each.excluded)
    stop = (phase.stop,) if phase.stop is not None and (asked is None or outcome is not asked) else ()
    later = (*stop, *phase.waiting.values(), *excluded, *leaves)
    if outcome is not None:
        state = with_parts(state, inherited.names or tuple(parts[rank].node for rank in sorted(parts)))
        state, actions = job_termination.wind_down(
            state, outcome, now_s, may_be_stop=ledger.may_be_stop, at_once=ledger.stop_at_once
        )
        is_old = ledger.verdict is not None or ledger.stop_signal is not None
        is_of_this_run = any(each.met_term for each in stands.values())
        told = (said(state, "leader_changed", ENDS_AS_BEFORE),) if is_old and not is_of_this_run else ()
        return state, (*told, *actions), later
    state = with_parts(state, inherited.names)
    if is_open:
        state, actions = _gather(state, stands, now_s, closes=not leaves)
        return state, (*refused, *actions), later
    if inherited.has_succeeded:  # That was decided already, but its record is lost.
        verdict = job_termination.succeeded_verdict(lost_node_replacement.lost_ranks(state))
        state, actions = job_termination.wind_down(state, verdict, now_s)
        return state, (*refused, *actions), later
    absent = {rank: inherited.absentee(rank, stands) for rank in missing}
    left_ago_s = now_s - min((phase.left_at_s[each.node] for each in parts.values()), default=now_s)
    kept_out = tuple(event for each in inherited.waiting.values() for event in missed_reports.kept_out(each))
    missed = missed_reports.of_cycle(parts, absent, cycle, left_ago_s)
    # A stop comes before the faults: the scheduler that asks for it may have ended the ranks, too.
    first = tuple(each for each in later if _asks_for_stop(each))
    rest = tuple(each for each in later if not _asks_for_stop(each))
    state, actions = _run(state, inherited, absent, now_s)
    return state, (*refused, *actions), (*first, *kept_out, *missed, *rest)


def _asks_for_stop(event: Event) -> bool:
    return isinstance(event, StopAsked) or (isinstance(event, LeaveAsked) and event.or_stop)


# --- how the job ends, if it does ----------------------------------------------------------------------------------


def _asked(state: State, phase: TakingOver, inherited: InheritedCycle, *, is_open: bool) -> Verdict | Stop | None:
    """Returns the stop that was asked for. One that came after all ranks had succeeded changes nothing."""
    has_led_to_it = any(each.stop_reason for each in inherited.parts.values())
    if phase.stop is None or (inherited.has_succeeded and not is_open and not has_led_to_it):
        return None
    return job_termination.outcome_asked(state, phase.stop)


def _outcome(
    ledger: Ledger, inherited: InheritedCycle, term: int, asked: Verdict | Stop | None
) -> Verdict | Stop | None:
    """Returns how the job is ending, by the ledger, by what a leader told a node, or by a stop that no leader heard."""
    if ledger.verdict is not None and not ledger.may_be_stop:
        return ledger.verdict
    if ledger.stop_signal is not None:
        return Stop(ledger.stop_signal, ledger.stop_reason, ledger.stop_grace_s, ledger.stop_is_final)
    return inherited.verdict_beyond(ledger, term) or asked or ledger.verdict


# --- which nodes there are, and by whose settings ------------------------------------------------------------------


def _rules(leader: str, stands: dict[str, NodeStands], inherited: InheritedCycle) -> JobRules:
    """Returns the job's settings: those of the nodes that have ranks. The leader may have come only now."""
    has_part = inherited.parts | inherited.waiting
    own = stands.get(leader, next(iter(stands.values())))
    if not has_part or any(each.node == own.node for each in has_part.values()):
        return own.rules
    return has_part[min(has_part)].rules


def _with_nodes(
    state: State, phase: TakingOver, inherited: InheritedCycle, rules: JobRules, *, refuses: bool
) -> Outcome:
    """Takes the nodes in, those that have ranks first. Any other one may have come only now, with other settings."""
    ledger, stands, cycle = state.recorded or Ledger(), phase.stands, inherited.number
    used = max(ledger.restarts_used, *(each.restarts_used for each in stands.values()))
    policy = restart_policy.initial_state(rules.restart, training_iteration=None)
    known = (each.assignment.epoch for each in stands.values() if each.assignment is not None)
    epoch = max(state.epoch, ledger.epoch, *known)
    state = msgspec.structs.replace(
        state,
        cycle=cycle,
        rules=rules,
        policy=msgspec.structs.replace(policy, used=used),
        members=node_states.for_rules(rules.rendezvous),
        vacant=tuple(inherited.vacant.values()),
        others_until_s=phase.until_s,
        epoch=epoch,
        leaving=state.leaving if cycle == state.cycle else (),
        own_epoch=fencing_epochs.next_epoch(epoch, began_at_ms=rules.facts.submitted_at_ms),
    )
    for name in inherited.names:
        state.members.put(name, Member(MemberState.LOST, cycle))
    has_part = {each.node for each in (inherited.parts | inherited.waiting).values()}
    actions: tuple[Action, ...] = ()
    for each in sorted(
        stands.values(), key=lambda each: (each.node not in has_part, not each.met_term, each.node != state.leader)
    ):
        if each.node in has_part or not refuses or each.state is MemberState.INFORMED:
            state.members.put(each.node, _member(each, cycle))
        else:
            state, refused = _take_or_refuse(state, each)
            actions += refused
    return state, actions


def _take_or_refuse(state: State, stands: NodeStands) -> Outcome:
    """Takes in a node without ranks, or turns it away. If it leads, it gives up the lead as soon as the job runs."""
    member = _member(stands, state.cycle)
    reason = settings_agreement.refusal(stands.node, stands.rules, state.rules, state.members)
    if not reason:
        return with_member(state, stands.node, member), ()
    if stands.node != state.leader:
        return node_departure.turn_away(state, stands.node, reason, Verdict(JobState.FAILED, 1, reason))
    leaves = msgspec.structs.replace(member, leaves=reason)
    return with_member(state, stands.node, leaves), (said(state, "node_refused", reason),)


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


# --- how it goes on ------------------------------------------------------------------------------------------------


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
