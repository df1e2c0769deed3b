"""Does a wrapped call continue, is it interrupted, which ranks begin its next iteration, and when has it succeeded?

Each cycle has one such machine for its calls, fed by all nodes. Every decision is made once, here, and sent to all, so
that two ranks can never begin one iteration with different world sizes, whatever dies meanwhile. A fault opens the last
call; everything else that fails until the next iteration belongs to the same fault. A rank that dies after a decision
is a fault of the iteration that the decision began.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

import msgspec

from supervisor.core.cluster.cluster_messages import CallReport, DeadlineReached
from supervisor.core.wrapped_calls import call_entry, call_state, rank_messages, replacement_ranks, retry_backoff
from supervisor.core.wrapped_calls.call_actions import EndCall, Order, Orders, Replace, Say, Tell, refuse
from supervisor.core.wrapped_calls.call_messages import (
    BeginIteration,
    CallEnter,
    CallLeave,
    Committed,
    Exchanged,
    Interruption,
    Lost,
    Started,
    Told,
)
from supervisor.core.wrapped_calls.call_state import (
    Entering,
    Idle,
    LastCall,
    Newcomer,
    Over,
    Rebuilding,
    Replacement,
    Restarting,
    Resting,
    Running,
    State,
    Unfit,
)
from supervisor.core.wrapped_calls.call_text import (
    begun_sentence,
    committed_sentence,
    deserted_sentence,
    faults_sentence,
    hopeless_sentence,
    late_sentence,
    lost_sentence,
    offered_sentence,
    resting_sentence,
    unfit_sentence,
)

REPLACE_WAIT_S = 5.0  # for a new process, after all others are ready; at most half of the barrier's timeout


class RanksGone(msgspec.Struct, frozen=True):
    """A node with these ranks is lost. `may_come_again`: another node can run them."""

    node: str
    members: tuple[int, ...]
    reason: str
    may_come_again: bool


class RanksOffered(msgspec.Struct, frozen=True):
    """A node has room for these ranks, which were lost with another node."""

    node: str
    members: tuple[int, ...]


Event = CallReport | RanksGone | RanksOffered | DeadlineReached
Action = Order


def initial_state(world_size: int, *, lost: Mapping[int, str] | None = None) -> State:
    """Starts without a call. `lost`: ranks that earlier calls of the cycle have gone on without, and how they ended."""
    return State(world_size, absent=dict(lost or {}), ended=dict(lost or {}))


def step(state: State, event: Event, *, now_s: float, units_left: int) -> tuple[State, tuple[Action, ...]]:
    """Takes one event. `units_left`: restart budget for new processes. `state` changes in place and is returned."""
    orders: Orders = []
    match event:
        case CallReport(node, _, told):
            for each in told:
                orders += _hear(state, node, each, now_s)
                orders += rank_messages.answer_overdue(state, each)
        case RanksGone():
            orders += _lose_node(state, event, now_s)
        case RanksOffered():
            orders += _take_offer(state, event, units_left)
        case DeadlineReached():
            pass
        case _:
            assert_never(event)
    while (more := _go_on(state, now_s, units_left)) is not None:
        orders += more
    return state, tuple(orders)


def next_deadline_s(state: State) -> float | None:
    match state.phase:
        case Rebuilding(until_s) | LastCall(until_s) | Resting(until_s):
            return until_s
        case Restarting(hold_until_s):
            return hold_until_s
        case Idle() | Entering() | Running() | Over():
            return None
        case _:
            assert_never(state.phase)


def _hear(state: State, node: str, told: Told, now_s: float) -> Orders:
    if isinstance(told.word, Lost):
        call_entry.note_begun(state, told.word.in_call, now_s=now_s)
    match told.word:
        case Started():
            return call_entry.hear_started(state, told.member)
        case CallEnter():
            return call_entry.hear_enter(state, node, told.member, told.word, now_s=now_s)
        case _ if isinstance(state.phase, Rebuilding):
            return call_entry.hear_while_rebuilding(state, node, told)
        case Lost():
            return rank_messages.hear_lost(state, told.member, told.word)
        case CallLeave():
            return rank_messages.hear_leave(state, told.member, told.word)
        case _:
            return rank_messages.hear(state, told.member, told.word)


# --- what follows --------------------------------------------------------------------------------------------------


def _go_on(state: State, now_s: float, units_left: int) -> Orders | None:
    """Returns the next decision that is possible now; None if there is none."""
    match state.phase:
        case Idle() | Over():
            return call_entry.end_unknown(state)
        case Entering():
            is_complete = len(state.entries) >= state.world_size - len(state.absent)
            return _begin(state, now_s) if is_complete else None
        case Rebuilding(until_s):
            return _rebuild(state, now_s) if call_entry.can_rebuild(state) or now_s >= until_s else None
        case Running() | LastCall() | Restarting() | Resting():
            pass
        case _:
            assert_never(state.phase)
    if not state.members:
        return _deserted(state)
    if state.now.replaceable:
        return _replace(state, units_left)
    if state.now.unfit or state.unfit_ended:
        return _let_unfit_end(state, units_left) if state.now.unfit else _replace_unfit(state, units_left)
    exchanged = [name for name, exchange in state.now.exchanges.items() if not exchange.waiting]
    if exchanged:
        return _exchange(state, exchanged)
    match state.phase:
        case Running():
            if state.now.faults:
                return _interrupt(state, now_s)
            return _commit(state) if not state.now.uncompleted else None
        case LastCall(until_s):
            return _restart(state) if not state.now.unreported or now_s >= until_s else None
        case Restarting(None):
            return _rest_or_decide(state, now_s) if not state.now.unarrived else None
        case Restarting(hold_until_s):
            return _hold_or_decide(state, hold_until_s, now_s) if not state.now.unarrived else None
        case Resting(until_s):
            return _hold_or_decide(state, None, now_s) if now_s >= until_s else None
        case _:
            assert_never(state.phase)


def _begin(state: State, now_s: float) -> Orders:
    state.began_at_s = now_s
    return call_entry.first_iteration(state)


def _rebuild(state: State, now_s: float) -> Orders:
    held, state.began_at_s = call_state.release_held(state), now_s
    orders = call_entry.rebuild(state)
    for node, told in held:
        orders += _hear(state, node, told, now_s)
    return orders


def _exchange(state: State, names: list[str]) -> Orders:
    orders: Orders = []
    for name in names:
        values = tuple(sorted(state.now.exchanges.pop(name).values.values()))
        exchanged = Exchanged(*state.position, name, values)
        state.now.exchanged[name] = exchanged
        call_state.remember(state, exchanged)
        orders.append(Tell(tuple(state.members), exchanged))
    return orders


def _interrupt(state: State, now_s: float) -> Orders:
    state.phase = LastCall(now_s + state.settings.last_call_wait_s)
    state.interrupted_at_s = now_s
    text = f"iteration {state.iteration} of call {state.call} is interrupted: {faults_sentence(state.now.faults)}"
    first = next(iter(state.now.faults))
    said = Say("iteration_interrupted", text, state.iteration, first if first >= 0 else None)
    return [*call_entry.tell_phase(state, tuple(state.members)), said]


def _restart(state: State) -> Orders:
    state.phase = Restarting()
    return call_entry.tell_phase(state, tuple(state.members))


def _replace(state: State, units_left: int) -> Orders:
    """Orders new processes at once, so they start while the others unwind.

    A new process counts its calls from 1, so it can take part only in the first call. New processes lost before they
    took part are replaced with the next fault.
    """
    lost, state.now.replaceable = state.now.replaceable, []
    if state.call != 1 or not (units_left > 0 or state.is_paid):
        return []
    again, state.lost_newcomers = state.lost_newcomers, []
    for node, member in lost:
        state.now.replacing[member] = Replacement(node, state.now.gone[member])
    takes_unit = not state.is_paid
    state.units_taken.add(state.iteration)
    for node, member in again:
        state.newcomers[member] = Newcomer(node)
    text = lost_sentence(state.iteration, [member for _, member in lost], [member for _, member in again])
    return [Replace((*lost, *again), takes_unit, text)]


def _let_unfit_end(state: State, units_left: int) -> Orders:
    """Ends unfit ranks that can be replaced without waiting for the others; new processes take their places."""
    unfit, state.now.unfit = state.now.unfit, []
    if state.call != 1 or not (units_left > 0 or state.is_paid):
        return []
    orders: Orders = []
    for node, member in unfit:
        state.unfit[member] = Unfit(node, state.iteration)
        orders += refuse(member, state.call, f"cannot go on: rank {member} is unfit, and a new process is to come")
    return orders


def _replace_unfit(state: State, units_left: int) -> Orders:
    """Replaces unfit ranks whose processes have ended, as part of the fault in which they left, however late."""
    ended, state.unfit_ended = state.unfit_ended, {}
    takes_unit = not state.is_paid and not all(each.iteration in state.units_taken for each in ended.values())
    if takes_unit and units_left <= 0:
        ended = {member: each for member, each in ended.items() if each.iteration in state.units_taken}
        takes_unit = False
    if not ended:
        return []
    for member, each in ended.items():
        state.units_taken.add(each.iteration)
        replacement_ranks.stand_in(state, member, each)
    lost = tuple((each.node, member) for member, each in ended.items())
    return [Replace(lost, takes_unit, unfit_sentence(state.call, ended))]


def _lose_node(state: State, gone: RanksGone, now_s: float) -> Orders:
    """Handles a lost node. A node that takes its place starts all its ranks, including those lost earlier."""
    lost = Lost(Interruption.TERMINATED, gone.reason, failed=gone.may_come_again)
    orders: Orders = []
    for member in gone.members:
        state.unfit.pop(member, None)  # Like the node's other ranks, it is restarted elsewhere or not at all.
        orders += _hear(state, gone.node, Told(member, lost), now_s)
    if gone.may_come_again and state.is_open:
        coming = {member for _, member in (*state.now.replaceable, *state.lost_newcomers)}
        state.lost_newcomers += [(gone.node, member) for member in gone.members if member not in coming]
    return orders


def _take_offer(state: State, offer: RanksOffered, units_left: int) -> Orders:
    """Orders new processes on another node, which wait and join with the next decision."""
    wanted = [member for member in offer.members if member not in state.members]
    if not wanted or not state.is_open or state.call != 1 or not (units_left > 0 or state.is_paid):
        return []
    for member in wanted:
        if not replacement_ranks.is_known(state, member):
            state.newcomers[member] = Newcomer(offer.node)
    # Processes that were lost before they took part come with these: the next fault starts no second ones.
    state.lost_newcomers = [(node, member) for node, member in state.lost_newcomers if member not in wanted]
    takes_unit = not state.is_paid
    state.units_taken.add(state.iteration)
    return [Replace(tuple((offer.node, member) for member in wanted), takes_unit, offered_sentence(offer.node, wanted))]


def _rest_or_decide(state: State, now_s: float) -> Orders | None:
    """Decides the next iteration, or delays it, once all are at the barrier."""
    if not state.now.faults:
        return _hold_or_decide(state, None, now_s)
    first = next(iter(next(iter(state.now.faults.values())).values()))
    ran_s = state.interrupted_at_s - state.began_at_s
    members = retry_backoff.blamed(state.now.faults)
    state.fruitless = retry_backoff.after(state.fruitless, members, first, state.settings, ran_s=ran_s)
    progress_s = retry_backoff.progress_s(first, state.settings)
    if state.fruitless.is_hopeless:
        why = hopeless_sentence(state.call, state.fruitless, progress_s, state.now.faults)
        return rank_messages.give_up(state, why, hopeless=True)
    pause_s = retry_backoff.pause_s(state.fruitless, state.settings)
    if not pause_s:
        return _hold_or_decide(state, None, now_s)
    state.phase = Resting(now_s + pause_s)
    text = resting_sentence(state.iteration, state.fruitless, progress_s, pause_s, state.now.faults)
    who = state.fruitless.first
    return [Say("iteration_delayed", text, state.iteration, who if who >= 0 else None)]


def _hold_or_decide(state: State, hold_until_s: float | None, now_s: float) -> Orders | None:
    awaited = replacement_ranks.awaited(state)
    if not awaited:
        return _decide(state, now_s)
    if hold_until_s is None:
        wait_s = min(REPLACE_WAIT_S, state.settings.barrier_timeout_s / 2)
        state.phase = Restarting(now_s + wait_s)
        return []
    if now_s < hold_until_s:
        return None
    return [Say("replacement_late", late_sentence(awaited), state.iteration), *_decide(state, now_s)]


def _decide(state: State, now_s: float) -> Orders:
    """Makes the one decision for the next iteration."""
    world_size = state.now.assigned_world_size
    if world_size is None:
        reason = f"cannot restart iteration {state.iteration}: no rank said how many ranks it had"
        return rank_messages.give_up(state, reason)
    plan = replacement_ranks.plan(state, world_size)
    anew = bool(plan.joining)
    decision = BeginIteration(state.call, state.next_iteration, plan.world_size, plan.terminated_ranks, anew)
    stayed = (
        *state.members,
        *state.now.left,
        *(member for member in plan.new if replacement_ranks.stays(state, member)),
    )
    before = len(state.members) + len(state.now.gone)
    gone, after = sorted(set(state.now.gone) - set(plan.new)), faults_sentence(state.now.faults)
    late = sorted(set(state.now.replacing) - set(plan.new))
    reserves = sum(not member.is_active for member in state.members.values()) if state.now.lost_active else 0
    replacement_ranks.admit(state, plan)
    call_state.remember(state, decision)
    state.decision = decision
    state.previous, state.iteration, state.skips_number = state.iteration, decision.iteration, False
    call_state.begin_iteration(state)
    state.phase, state.began_at_s = Running(), now_s
    orders: Orders = [Tell(stayed, decision)]
    if new := tuple(member for member in plan.new if member not in stayed):
        orders.append(Tell(new, call_state.entered(state)))
    text = begun_sentence(
        state.iteration, len(state.members), before, gone, plan, later=late, has_reserves=reserves > 0
    )
    took = (("took_s", f"{now_s - state.interrupted_at_s:.3f}"),)
    return [*orders, Say("iteration_restarted", f"{text}, after {after}", state.iteration, details=took)]


def _commit(state: State) -> Orders:
    """Commits the call. Nothing can undo this."""
    call_state.close(state, Idle())
    state.committed, state.committed_on = Committed(*state.position), frozenset(state.members)
    text = committed_sentence(state.call, state.iteration, state.members, state.newcomers)
    return [
        Tell((*state.members, *replacement_ranks.release(state)), state.committed),
        Say("call_committed", text, state.iteration),
        EndCall(state.call, stands=True, reason=text),
    ]


def _deserted(state: State) -> Orders:
    """Ends a call without remaining ranks. Ranks that left still wait to learn that no iteration follows."""
    reason = deserted_sentence(state.call, state.absent)
    world_size = state.world_size if state.now.assigned_world_size is None else state.now.assigned_world_size
    nobody = BeginIteration(state.call, state.next_iteration, world_size, tuple(range(world_size)))
    told: Orders = [Tell(tuple(state.now.left), nobody)] if state.now.left else []
    for member in state.newcomers:
        told += refuse(member, state.call, reason) if replacement_ranks.stays(state, member) else []
    call_state.close(state, Over(reason))
    return [*told, Say("call_lost", reason, state.iteration), EndCall(state.call, stands=False, reason=reason)]
