"""Which new processes take part in the next iteration, as which rank, and for which of them does the decision wait?

A process that arrives in time replaces the lost one: it receives all decisions and arrives at the same number. If it
arrives later, the others have continued. It waits and joins with the next decision, whatever causes that: rank
assignment then starts over on all ranks, from the numbers with which they were launched, as in a call that begins
without absent ranks.
"""

from __future__ import annotations

import msgspec

from supervisor.core.wrapped_calls import call_state
from supervisor.core.wrapped_calls.call_state import Member, Newcomer, Replacement, State, Unfit


class Plan(msgspec.Struct, frozen=True):
    """The ranks that leave and join with one decision; numbers as in BeginIteration."""

    world_size: int
    terminated_ranks: tuple[int, ...]
    standing_in: tuple[int, ...] = ()  # members, each under the number of its lost process
    joining: tuple[int, ...] = ()  # members; rank assignment then starts over

    @property
    def new(self) -> tuple[int, ...]:
        return tuple(sorted((*self.standing_in, *self.joining)))


def awaited(state: State) -> list[int]:
    """Returns new processes without which fewer ranks would be active; none if a reserve or newcomer can step in.

    A rank that has just left as unfit counts too: its process ends first.
    """
    reserves = sum(not member.is_active for member in state.members.values())
    here = sum(each.entered for each in (*state.now.replacing.values(), *state.newcomers.values()))
    if len(state.now.lost_active) <= reserves + here:
        return []
    coming = [member for member, each in state.now.replacing.items() if not each.entered]
    coming += [member for member, each in state.unfit.items() if each.iteration == state.iteration]
    return [member for member in coming if member in state.now.lost_active]


def plan(state: State, world_size: int) -> Plan:
    """Plans for all that are present: each takes its own place or, if that is impossible for any, all are newcomers."""
    missing = set(range(world_size)) - {member.rank for member in state.members.values()}
    in_time = [member for member, each in state.now.replacing.items() if each.entered]
    late = [member for member, each in state.newcomers.items() if each.entered]
    can_replay = state.past.can_replay or not in_time
    kept = None if late or not can_replay else _own_places(state, in_time, missing)
    if kept is None:
        absent = set(range(state.world_size)) - {*state.members, *in_time, *late}
        return Plan(state.world_size, tuple(sorted(absent)), joining=tuple(sorted((*in_time, *late))))
    return Plan(world_size, tuple(sorted(missing - kept)), standing_in=tuple(sorted(in_time)))


def _own_places(state: State, in_time: list[int], missing: set[int]) -> set[int] | None:
    """Returns the numbers of the lost processes that these replace; None: unknown.

    If a rank died before it reported its number, elimination finds it.
    """
    ranks = [state.now.replacing[member].rank for member in in_time]
    kept = missing & {rank for rank in ranks if rank is not None}
    unknown = ranks.count(None)
    if not unknown:
        return kept
    others = [rank for member, rank in state.now.gone.items() if member not in in_time]
    free = missing - kept - set(others)
    return kept | free if None not in others and len(free) == unknown else None


def admit(state: State, plan: Plan) -> None:
    """Makes the plan's new processes members before the iteration begins; all others may join the next one."""
    if plan.joining:
        call_state.begin_again(state)
    for member in plan.new:
        new = state.now.replacing.pop(member, None) or state.newcomers.pop(member)
        state.members[member] = Member(new.node)
        state.absent.pop(member, None)
        state.ended.pop(member, None)
    state.newcomers |= {member: Newcomer(each.node) for member, each in state.now.replacing.items()}
    state.now.replacing = {}


def stand_in(state: State, member: int, unfit: Unfit) -> None:
    """Notes a new process for an unfit rank. The others may have continued while the old process was ending."""
    if unfit.iteration == state.iteration:
        state.now.replacing[member] = Replacement(unfit.node, state.now.gone[member])
    else:
        state.newcomers[member] = Newcomer(unfit.node)


def is_known(state: State, member: int) -> bool:
    """Returns whether a new process has already been started for the member."""
    return member in state.now.replacing or member in state.newcomers


def enter(state: State, node: str, member: int) -> bool:
    """Notes a new process at the initial barrier of a running call. Returns False if it may not join."""
    known = state.now.replacing.get(member) or state.newcomers.get(member)
    if known is None:
        return False
    known.node, known.entered = node, True
    return True


def stays(state: State, member: int) -> bool:
    """Returns whether the member waits at an earlier iteration's barrier and joins the next iteration."""
    return member in state.newcomers and state.newcomers[member].stayed


def lose(state: State, member: int, *, may_come_again: bool) -> bool:
    """Notes that a new process was lost before it took part; the next fault may start another. False: not one."""
    known = state.now.replacing.pop(member, None) or state.newcomers.pop(member, None)
    if known is not None and may_come_again and state.is_open:
        state.lost_newcomers.append((known.node, member))
    return known is not None


def release(state: State) -> tuple[int, ...]:
    """Returns those that wait for an iteration although the call has succeeded; they may join a later call."""
    waiting = [member for member, each in state.newcomers.items() if each.entered]
    for member in waiting:
        state.newcomers[member].entered = False
    return tuple(waiting)


def come_in(state: State, member: int) -> None:
    """Treats a newcomer to a call that has not begun as an ordinary rank."""
    if state.newcomers.pop(member, None) is not None:
        state.absent.pop(member, None)
