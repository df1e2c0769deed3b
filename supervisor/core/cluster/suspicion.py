"""When may a leader, which may itself have stalled or be new, declare a silent node lost?

Only time in which the leader listened counts as silence. Waiting longer is always safe: the node has ended its own
workers by then.
"""

from __future__ import annotations

import msgspec

STALLS_MAX = 32  # the newest are kept; a node silent through more of them is already decided


class State(msgspec.Struct, frozen=True):
    leads_since_s: float
    stalls: tuple[tuple[float, float], ...] = ()  # (from, to): when the leader stalled, in order


def initial_state(now_s: float) -> State:
    return State(now_s)


def stood_still(state: State, *, from_s: float, to_s: float) -> State:
    """Notes a stall: the leader was to check its clock at `from_s` and did so at `to_s`. May be repeated."""
    from_s = max(from_s, state.stalls[-1][1] if state.stalls else state.leads_since_s)
    if from_s >= to_s:
        return state
    return msgspec.structs.replace(state, stalls=(*state.stalls, (from_s, to_s))[-STALLS_MAX:])


def lost_at_s(state: State, *, heard_at_s: float, lost_s: float) -> float:
    """Returns when the node counts as lost: `lost_s` of silence after its last message at `heard_at_s`."""
    since_s = max(heard_at_s, state.leads_since_s)
    until_s = since_s + lost_s
    for from_s, to_s in state.stalls:
        if to_s > since_s and from_s < until_s:
            until_s += to_s - max(from_s, since_s)
    return until_s
