"""How long may the workers of this node run if its leader is elected, and what ends them then?

They may run as long as a leader answered within FENCE_S, or the backend said that nobody leads (see
core/fence_times.py). The spawner knows the limit, too, in case this process hangs. If no workers run, the fence has no
effect.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core.fence_times import FENCE_S
from supervisor.core.orders import StandBack

MOVED_EVERY_S = 1.0  # the spawner learns in time that this process is not stalled
MOVED_BY_S = 0.8  # the spawner learns at once: this process may be killed, and back in time

# --- events --------------------------------------------------------------------------------------------------------


class NobodyElse(msgspec.Struct, frozen=True):
    """At `known_at_s`, no other node could replace this one: a leader answered, or nobody led."""

    known_at_s: float


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = NobodyElse | DeadlineReached

# --- actions -------------------------------------------------------------------------------------------------------


class EndWorkers(msgspec.Struct, frozen=True):
    order: StandBack


class MoveFence(msgspec.Struct, frozen=True):
    """Tell the node and its spawner."""

    until_s: float


Action = EndWorkers | MoveFence

# --- the machine ---------------------------------------------------------------------------------------------------


class State(msgspec.Struct, frozen=True):
    node: str
    until_s: float
    told_s: float  # the limit that the spawner knows
    tells_at_s: float  # when it is told next


def initial_state(node: str, *, now_s: float, known_at_s: float | None = None) -> State:
    """Begins. `known_at_s`: as of the process before this one; None: this moment, when nothing runs yet."""
    until_s = (now_s if known_at_s is None else known_at_s) + FENCE_S
    return State(node, until_s, told_s=until_s, tells_at_s=now_s)


def step(state: State, event: Event, *, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match event:
        case NobodyElse(known_at_s):
            state = msgspec.structs.replace(state, until_s=max(state.until_s, known_at_s + FENCE_S))
            return _tell(state, now_s) if state.until_s - state.told_s >= MOVED_BY_S else (state, ())
        case DeadlineReached():
            return _tell(state, now_s) if now_s >= state.tells_at_s else (state, ())
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float:
    return state.tells_at_s


def _tell(state: State, now_s: float) -> tuple[State, tuple[Action, ...]]:
    ends: tuple[Action, ...] = ()
    told_s = state.until_s
    if now_s >= told_s:
        why = f"for {FENCE_S:g} s no leader has answered, and the backend has not said that there is none"
        ends = (EndWorkers(StandBack(f"node {state.node} ends its workers, since another may take its place: {why}")),)
        told_s = now_s + FENCE_S  # the spawner's: no workers run any more
    tells_at_s = now_s + min(MOVED_EVERY_S, told_s - now_s)
    return msgspec.structs.replace(state, told_s=told_s, tells_at_s=tells_at_s), (*ends, MoveFence(told_s))
