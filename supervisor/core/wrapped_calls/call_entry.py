"""What happens when a rank enters a wrapped call, or returns to it after a lost connection?"""

from __future__ import annotations

from typing import assert_never

from supervisor.core.wrapped_calls import call_state, rank_messages, replacement_ranks
from supervisor.core.wrapped_calls.call_actions import EndCall, Orders, Say, Tell, refuse
from supervisor.core.wrapped_calls.call_messages import (
    Barrier,
    BarrierArrive,
    BeginIteration,
    CallCompleted,
    CallEnter,
    CallUnderway,
    Committed,
    Interrupt,
    Interruption,
    Lost,
    Restart,
    Stage,
    Told,
)
from supervisor.core.wrapped_calls.call_state import (
    Entering,
    Idle,
    LastCall,
    Member,
    Newcomer,
    Over,
    Rebuilding,
    Restarting,
    Resting,
    Running,
    State,
)
from supervisor.core.wrapped_calls.call_text import deserted_sentence


def hear_started(state: State, member: int) -> Orders:
    """Notes a new process. After a call that no rank has survived, all counts restart."""
    state.ended.pop(member, None)
    if isinstance(state.phase, Over):
        state.phase, state.call = Idle(), 0
        state.absent.clear()
    return []


def hear_enter(state: State, node: str, member: int, word: CallEnter, *, now_s: float) -> Orders:
    done = state.committed
    if done is not None and word.call == done.call and word.stage is Stage.COMPLETING and member in state.committed_on:
        return [Tell((member,), done)]  # It missed that, and the others may be in the next call.
    if member in state.newcomers and word.stage is Stage.ENTERING:
        if done is not None and word.call <= done.call:
            return [Tell((member,), Committed(word.call, done.iteration))]  # It came after the end.
        if isinstance(state.phase, Entering) or (isinstance(state.phase, Idle) and word.call > state.call):
            replacement_ranks.come_in(state, member)
    match state.phase:
        case Over(reason) if word.call <= state.call:
            return refuse(member, word.call, reason)
        case Idle() | Over() | Entering() | Rebuilding() if member in state.absent:
            return refuse(member, word.call, late_sentence(state, member))
        case Idle() | Over() if word.call > state.call:
            call_state.open_call(state, word.call, word.settings)
            state.phase = Entering()
            return _come_in(state, node, member, word, now_s)
        case Idle() | Over():
            return refuse(
                member, word.call, f"cannot enter call {word.call}: it is over; all ranks must make it at once"
            )
        case Entering() | Rebuilding():
            return _come_in(state, node, member, word, now_s)
        case Running() | LastCall() | Restarting() | Resting():
            return _come_back(state, node, member, word)
        case _:
            assert_never(state.phase)


def _come_in(state: State, node: str, member: int, word: CallEnter, now_s: float) -> Orders:
    if word.call == state.call - 1 and word.stage is Stage.COMPLETING:
        return [Tell((member,), Committed(word.call, word.iteration))]  # All ranks in this call were told so.
    if word.call == state.call + 1 and word.stage is Stage.ENTERING and isinstance(state.phase, Rebuilding):
        return [*_conclude(state), *hear_enter(state, node, member, word, now_s=now_s)]
    if word.call != state.call:
        reason = (
            f"cannot begin: rank {member} is at call {word.call} while others are at call {state.call}; "
            "all ranks must make the same calls in the same order"
        )
        return [*rank_messages.give_up(state, reason), *refuse(member, word.call, reason)]
    state.entries[member] = (node, word)
    state.settings = call_state.merge_settings(state.settings, word.settings)
    if isinstance(state.phase, Rebuilding):
        return []
    if word.stage is not Stage.ENTERING or word.call == state.begun_before:
        state.phase = Rebuilding(now_s + state.settings.heartbeat_timeout_s)
        return []
    missing = [each for each in sorted(state.ended) if each not in state.absent]
    return rank_messages.cannot_enter(state, missing[0], state.ended[missing[0]]) if missing else []


def _come_back(state: State, node: str, member: int, word: CallEnter) -> Orders:
    """Sends a replacement process, or a member that lost its connection, everything that it missed."""
    if word.call == state.call and word.stage is Stage.ENTERING and replacement_ranks.enter(state, node, member):
        told: Orders = [Tell((member,), CallUnderway(state.call))]
        if member not in state.newcomers:
            return told
        text = f"the new process of rank {member} waits, and joins the next iteration of call {state.call}"
        return [*told, Say("replacement_waits", text, state.iteration, member)]
    if word.call == state.call and word.stage is Stage.RESTARTING and replacement_ranks.stays(state, member):
        state.newcomers[member].node = node
        return []
    if member not in state.members:
        return refuse(member, word.call, late_sentence(state, member))
    is_entering = word.stage is Stage.ENTERING and (state.past.can_replay or state.iteration == state.past.begun_at)
    has_missed = word.stage is Stage.RESTARTING and word.iteration == state.previous
    is_here = word.stage is not Stage.ENTERING and word.iteration == state.iteration
    if word.call != state.call or not (is_entering or has_missed or is_here):
        why = f"came back to iteration {word.iteration} of call {word.call}, which is not known any more"
        call_state.add_fault(state, member, Interruption.UNRESPONSIVE, why)
        call_state.remove(state, member, why)
        return refuse(member, word.call, f"cannot go on: rank {member} {why}")
    state.members[member].node = node
    orders: Orders = []
    if is_entering:
        orders.append(Tell((member,), call_state.entered(state)))
    elif has_missed and state.decision is not None:
        orders.append(Tell((member,), state.decision))
    elif is_here:
        orders += infer_lost_messages(state, member, word)
    orders += [Tell((member,), each) for each in state.now.exchanged.values()]
    return orders + tell_phase(state, (member,)) if member in state.members else orders


def hear_while_rebuilding(state: State, node: str, told: Told) -> Orders:
    """Keeps the message until the call is rebuilt; a rank that sends too many different ones can't return to it."""
    if isinstance(told.word, Lost):
        state.ended[told.member] = told.word.reason
    if call_state.hold(state, node, told):
        return []
    state.entries.pop(told.member, None)
    reason = f"sent more than {call_state.HELD_WORDS_MAX} messages while its supervisor came back"
    return refuse(told.member, state.call, f"cannot go on: rank {told.member} {reason}")


def infer_lost_messages(state: State, member: int, word: CallEnter) -> Orders:
    """Infers lost messages of a rank from the stage and the number that it reports."""
    if state.now.assigned_world_size is None:
        state.now.assigned_world_size = word.world_size
    told = rank_messages.number(state, member, word.rank)
    if told:
        return told
    state.members[member].is_active = word.active
    match word.stage:
        case Stage.COMPLETING:
            arrival = BarrierArrive(*state.position, Barrier.COMPLETION, word.rank, word.active)
            return rank_messages.hear(state, member, arrival)
        case Stage.RESTARTING:
            arrival = BarrierArrive(*state.position, Barrier.ITERATION, word.rank, word.active)
            return rank_messages.hear(state, member, arrival)
        case Stage.UNWINDING:
            if isinstance(state.phase, Running):
                text = "was unwinding when its connection came back"
                call_state.add_fault(state, member, Interruption.EXCEPTION, text, rank=word.rank)
            return []
        case Stage.ENTERING | Stage.RUNNING:
            return []
        case _:
            assert_never(word.stage)


def tell_phase(state: State, members: tuple[int, ...]) -> Orders:
    """Sends these members what the phase requires of them."""
    match state.phase:
        case Running() if state.now.is_completed:
            return [Tell(members, CallCompleted(*state.position))]
        case LastCall():
            return [Tell(members, Interrupt(*state.position))]
        case Restarting() | Resting():
            members = tuple(member for member in members if member in state.now.unarrived)
            return [Tell(members, Restart(*state.position, call_state.records(state)))] if members else []
        case _:
            return []


def late_sentence(state: State, member: int) -> str:
    why = state.absent.get(member, "is not a rank of this job")
    return f"cannot take part: rank {member} {why}, and the others have gone on without; the next cycle includes it"


# --- a coordinator that knows nothing of the call -----------------------------------------------------------------


def note_begun(state: State, call: int, *, now_s: float) -> None:
    """Notes a call in which a rank was lost: it had begun, even if no rank comes back to it."""
    is_unknown = call > state.call if isinstance(state.phase, Idle) else call == state.call
    if not is_unknown or not isinstance(state.phase, Idle | Entering | Rebuilding):
        return
    state.begun_before = max(call, state.begun_before)
    if isinstance(state.phase, Entering):
        state.phase = Rebuilding(now_s + state.settings.heartbeat_timeout_s)


def end_unknown(state: State) -> Orders | None:
    """Ends a call that had begun before, if all ranks of the cycle have ended; None: some may come back to it."""
    if not state.begun_before or len(state.ended) < state.world_size:
        return None
    state.call = state.begun_before
    return rank_messages.give_up(state, deserted_sentence(state.call, state.ended))


def newest(state: State) -> dict[int, CallEnter]:
    """Returns the ranks that came back to the newest known iteration.

    Ranks that have not entered yet belong to the first one, if that began with the whole world and no rank is through
    with it: such a rank gives no more values to those that assign ranks for it.
    """
    top = max((word.iteration for _, word in state.entries.values()), default=0)
    here = {member: word for member, (_, word) in sorted(state.entries.items()) if word.iteration == top}
    sizes = {word.world_size for word in here.values() if word.stage is not Stage.ENTERING}
    is_over = any(word.stage is Stage.RESTARTING for word in here.values())
    may_enter = top == 0 and sizes == {state.world_size} and not is_over
    return {member: word for member, word in here.items() if may_enter or word.stage is not Stage.ENTERING}


def rebuilt_world_size(state: State) -> int:
    """Returns the world size of the newest iteration, as its ranks report it."""
    sizes = [word.world_size for word in newest(state).values() if word.stage is not Stage.ENTERING]
    return max(sizes, default=state.world_size)


def can_rebuild(state: State) -> bool:
    """Returns whether no rank is awaited: all ranks of the newest iteration are here, or all living ones."""
    living = [member for member in range(state.world_size) if member not in state.ended]
    return len(newest(state)) >= rebuilt_world_size(state) or all(member in state.entries for member in living)


def _conclude(state: State) -> Orders:
    """Ends the call as committed by an earlier coordinator, because some rank is already in the next call."""
    here = newest(state)
    state.committed = Committed(state.call, max((word.iteration for word in here.values()), default=0))
    state.committed_on, state.entries = frozenset(range(state.world_size)), {}
    call_state.release_held(state)
    call_state.close(state, Idle())
    text = f"call {state.call} succeeded, before its supervisor was lost"
    return [
        Tell(tuple(here), state.committed),
        Say("call_committed", text, state.committed.iteration),
        EndCall(state.call, stands=True, reason=text),
    ]


def rebuild(state: State) -> Orders:
    """Rebuilds the call from its ranks' reports. Ranks still missing are lost; earlier decisions are unknown."""
    here, world_size = newest(state), rebuilt_world_size(state)
    if not here and state.begun_before == state.call:
        return rank_messages.give_up(state, deserted_sentence(state.call, state.ended))
    entries, state.entries = state.entries, {}
    if not here:
        state.phase = Idle()
        return []
    state.iteration = next(iter(here.values())).iteration
    state.members = {member: Member(entries[member][0]) for member in here}
    state.phase, state.past.is_rebuilt = Running(), True
    call_state.begin_iteration(state)
    for member in range(state.world_size):
        if member not in here:
            state.absent[member] = "was not there when its supervisor came back"
    orders: Orders = []
    for member, (node, word) in entries.items():
        if member not in here and word.stage is Stage.ENTERING:
            state.newcomers[member] = Newcomer(node, entered=True)  # It needs no earlier decisions.
            orders.append(Tell((member,), CallUnderway(state.call)))
        elif member not in here and word.stage is Stage.RESTARTING and len(here) < world_size:
            state.newcomers[member] = Newcomer(node, entered=True, stayed=True)
        elif member not in here:
            orders += refuse(member, state.call, late_sentence(state, member))
    state.now.assigned_world_size = None if all(word.stage is Stage.ENTERING for word in here.values()) else world_size
    for member, word in here.items():
        if not state.is_open:
            return orders  # The reports contradict each other: the call was given up.
        if word.stage is Stage.ENTERING:
            orders.append(Tell((member,), call_state.entered(state)))
        else:
            orders += infer_lost_messages(state, member, word)
    if state.is_open and len(here) < world_size:
        living = set(range(state.world_size)) - set(state.ended)
        state.skips_number = not living <= set(entries)
        text = f"did not come back within {state.settings.heartbeat_timeout_s:.0f} s after its supervisor was lost"
        if not state.skips_number:
            text = "ended, or had not heard the last decision, when its supervisor was lost"
        for rank in sorted(set(range(world_size)) - set(state.now.numbers)):
            call_state.add_fault(state, -1 - rank, Interruption.UNRESPONSIVE, text, rank=rank)
    text = f"iteration {state.iteration} of call {state.call} goes on with {len(here)} of {world_size} ranks"
    return [*orders, Say("call_rebuilt", text, state.iteration)]


def first_iteration(state: State) -> Orders:
    """Begins the first iteration, since all ranks have entered."""
    state.members = {member: Member(node) for member, (node, _) in state.entries.items()}
    state.entries = {}
    call_state.begin_iteration(state)
    if state.absent:
        call_state.remember(state, BeginIteration(state.call, 0, state.world_size, tuple(sorted(state.absent))))
    state.phase = Running()
    text = f"call {state.call} begins with {len(state.members)} of {state.world_size} ranks"
    return [Tell(tuple(state.members), call_state.entered(state)), Say("call_entered", text, 0)]
