"""What does a message about a rank in a wrapped call change? The only decision here is that a call can't go on."""

from __future__ import annotations

from typing import assert_never

from supervisor.core.wrapped_calls import call_state, replacement_ranks
from supervisor.core.wrapped_calls.call_actions import EndCall, Orders, Say, Tell, refuse
from supervisor.core.wrapped_calls.call_messages import (
    EXCHANGE_NAMES_MAX,
    EXCHANGE_NAMES_OPEN_MAX,
    Barrier,
    BarrierArrive,
    CallCompleted,
    CallEnter,
    CallLeave,
    CallRefused,
    ExchangeValue,
    FaultsReported,
    Interruption,
    IterationBegan,
    Leaving,
    Lost,
    RankFault,
    RanksMissing,
    Told,
)
from supervisor.core.wrapped_calls.call_state import Entering, Exchange, Idle, Over, Running, State
from supervisor.core.wrapped_calls.call_text import NAMED_MAX, ranks_sentence

NAME_SHOWN_CHARACTERS = 40

OfIteration = IterationBegan | RankFault | FaultsReported | BarrierArrive | ExchangeValue


def hear(state: State, member: int, word: OfIteration) -> Orders:
    """Handles a message. Messages of other calls, older iterations and removed ranks change nothing."""
    if not state.is_open or (word.call, word.iteration) != state.position or member not in state.members:
        return []
    match word:
        case IterationBegan():
            return _began(state, member, word)
        case RankFault(rank=rank, interruption=interruption, reason=reason):
            call_state.add_fault(state, member, interruption, reason, rank=rank)
            state.now.unreported.discard(member)
            return []
        case FaultsReported():
            state.now.unreported.discard(member)
            return []
        case BarrierArrive():
            return _arrived(state, member, word)
        case ExchangeValue():
            return _value(state, member, word)
        case _:
            assert_never(word)


def _began(state: State, member: int, word: IterationBegan) -> Orders:
    if state.now.assigned_world_size is None:
        state.now.assigned_world_size = word.world_size
    if state.now.active_world_size is None:
        state.now.active_world_size = word.active_world_size
    known = (state.now.assigned_world_size, state.now.active_world_size)
    if known != (word.world_size, word.active_world_size):
        return give_up(
            state,
            f"cannot begin iteration {state.iteration}: rank assignment came to world size {word.world_size} "
            f"({word.active_world_size} active) on rank {member} and to {known[0]} ({known[1]} active) on another; "
            "it must come to the same on all ranks",
        )
    state.members[member].is_active = word.active_rank is not None
    return number(state, member, word.rank)


def number(state: State, member: int, rank: int) -> Orders:
    """Notes the member's number in this iteration, which no other member may have."""
    holder = state.now.numbers.setdefault(rank, member)
    if holder != member:
        return give_up(
            state,
            f"cannot go on with iteration {state.iteration}: rank assignment gave number {rank} to "
            f"{ranks_sentence((holder, member))}; it must give each number once",
        )
    state.members[member].rank = rank
    return []


def _arrived(state: State, member: int, word: BarrierArrive) -> Orders:
    match word.barrier:
        case Barrier.COMPLETION:
            if not isinstance(state.phase, Running):
                return []  # It crossed the news of a fault.
            state.now.uncompleted.discard(member)
            if not word.active or state.now.is_completed:
                return []
            state.now.is_completed = True
            return [Tell(tuple(state.members), CallCompleted(*state.position))]
        case Barrier.ITERATION:
            if Interruption.HARD_TIMEOUT in state.now.faults.get(member, ()):
                return []  # Its process is being ended: the next iteration waits for that, and does not count it.
            if isinstance(state.phase, Running):
                text = "went to the iteration barrier without a fault of its own"
                call_state.add_fault(state, member, Interruption.EXCEPTION, text, rank=word.rank)
            state.now.unreported.discard(member)
            state.now.unarrived.discard(member)
            state.members[member].is_active = word.active
            return number(state, member, word.rank)
        case _:
            assert_never(word.barrier)


def _value(state: State, member: int, word: ExchangeValue) -> Orders:
    done = state.now.exchanged.get(word.name)
    if done is not None:
        return [Tell((member,), done)]
    exchange = state.now.exchanges.get(word.name)
    if exchange is None:
        if excess := _excess(state):
            return _refuse_name(state, member, word.name, excess)
        exchange = state.now.exchanges[word.name] = Exchange(set(state.members))
    exchange.waiting.discard(member)
    exchange.values[member] = (word.rank, word.value)
    return []


def _excess(state: State) -> str | None:
    """Returns why there can't be another name."""
    if len(state.now.exchanges) >= EXCHANGE_NAMES_OPEN_MAX:
        return f"{EXCHANGE_NAMES_OPEN_MAX} names already wait for the values of other ranks, and that is the limit"
    if len(state.now.exchanges) + len(state.now.exchanged) >= EXCHANGE_NAMES_MAX:
        return f"one rank assignment has {EXCHANGE_NAMES_MAX} names at most"
    return None


def _refuse_name(state: State, member: int, name: str, excess: str) -> Orders:
    """Removes the rank that exceeds a limit; the others begin another iteration without it."""
    why = f"cannot exchange {name[:NAME_SHOWN_CHARACTERS]!r}: {excess}; exchange several values under one name"
    call_state.add_fault(state, member, Interruption.EXCEPTION, why)
    call_state.remove(state, member, f"was refused: {why}")
    return refuse(member, state.call, why)


def answer_overdue(state: State, told: Told) -> Orders:
    """Tells a rank whose wait is over its time which ranks are missing, if any are."""
    missing = sorted(_missing(state, told))
    if not missing:
        return []
    return [Tell((told.member,), RanksMissing(state.call, tuple(missing[:NAMED_MAX]), len(missing)))]


def _missing(state: State, told: Told) -> set[int]:
    match told.word:
        case CallEnter(call=call, overdue=True) if isinstance(state.phase, Entering) and call == state.call:
            return set(range(state.world_size)) - {*state.entries, *state.absent}
        case BarrierArrive(overdue=True) | ExchangeValue(overdue=True) if state.is_open:
            word = told.word
        case _:
            return set()
    if (word.call, word.iteration) != state.position:
        return set()
    if isinstance(word, ExchangeValue):
        exchange = state.now.exchanges.get(word.name)
        return exchange.waiting if exchange is not None else set()
    if word.barrier is Barrier.ITERATION:
        return state.now.unarrived or set(replacement_ranks.awaited(state))
    return state.now.uncompleted if isinstance(state.phase, Running) else set()


def hear_leave(state: State, member: int, word: CallLeave) -> Orders:
    """Handles a rank that leaves by itself."""
    if word.call != state.call or isinstance(state.phase, Idle | Over):
        return []
    reason = f"left the call: {word.reason}" if word.reason else "left the call"
    if isinstance(state.phase, Entering):
        why = f"rank {member} left before all ranks had entered" + (f": {word.reason}" if word.reason else "")
        return give_up(state, f"cannot begin call {state.call}: {why}")
    if replacement_ranks.lose(state, member, may_come_again=False):
        return _replacement_lost(state, member, reason)
    if member not in state.members:
        return []
    if word.why is Leaving.DISCARDED:
        call_state.remove(state, member, reason)
        state.now.lost_active.discard(member)
        del state.now.gone[member]  # It has no number in this iteration: all ranks know that it left.
        return [Say("rank_discarded", f"rank {member} {reason}", state.iteration, member)]
    if member not in state.now.faults:
        call_state.add_fault(state, member, Interruption.BASE_EXCEPTION, word.reason)
    node = state.members[member].node
    call_state.remove(state, member, reason)
    state.now.left[member] = reason
    if word.unfit:
        state.now.unfit.append((node, member))
    return [Say("rank_left_call", f"rank {member} {reason}", state.iteration, member)]


def hear_lost(state: State, member: int, word: Lost) -> Orders:
    """Handles a rank whose process has ended or can no longer be reached."""
    state.ended[member] = word.reason
    state.now.left.pop(member, None)  # Its replacement process has not stayed either.
    if replacement_ranks.lose(state, member, may_come_again=word.failed):
        is_over = isinstance(state.phase, Idle) and not word.failed  # The call has succeeded, and the script ends.
        return [] if is_over else _replacement_lost(state, member, word.reason)
    unfit = state.unfit.pop(member, None)
    if unfit is not None and word.failed and state.is_open:
        state.unfit_ended[member] = unfit
    if member in state.absent:
        return []
    if member not in state.members or isinstance(state.phase, Idle | Over):
        return cannot_enter(state, member, word.reason) if isinstance(state.phase, Entering) else []
    node = state.members[member].node
    if not {Interruption.HARD_TIMEOUT, Interruption.UNRESPONSIVE} & set(state.now.faults.get(member, ())):
        call_state.add_fault(state, member, word.interruption, word.reason)
    call_state.remove(state, member, word.reason)
    if word.failed:
        state.now.replaceable.append((node, member))
    text = f"rank {member} {word.reason}, in iteration {state.iteration} of call {state.call}"
    return [Say("rank_lost_in_call", text, state.iteration, member)]


def _replacement_lost(state: State, member: int, reason: str) -> Orders:
    text = f"the new process of rank {member} {reason} before it took part"
    return [Say("replacement_lost", text, state.iteration, member)]


def cannot_enter(state: State, member: int, reason: str) -> Orders:
    return give_up(state, f"cannot begin call {state.call}: rank {member} {reason} before it entered")


def give_up(state: State, reason: str, *, hopeless: bool = False) -> Orders:
    """Ends a call that can't continue: every rank in it, or waiting for it, raises this sentence.

    `hopeless`: it could continue, but failed without progress too often.
    """
    listeners = tuple(dict.fromkeys((*state.members, *state.entries, *state.now.left)))
    call_state.close(state, Over(reason))
    told: Orders = [Tell(listeners, CallRefused(state.call, reason, hopeless))] if listeners else []
    return [*told, Say("call_lost", reason, state.iteration), EndCall(state.call, stands=False, reason=reason)]
