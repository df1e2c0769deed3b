"""Which nodes confirm that they hear their leader, and when did the last of them do so?

An elected leader sends heartbeats to the first nodes of the cycle that runs, and they send them back. Once all of them
have, the leader's own workers run only as long as one of them still does, or the lead was renewed just now. So if the
leader alone is lost, the next one knows from these nodes when its workers have ended (core/fence_times.py). It need not
wait as long after the end of the lead, which the backend may have ended early.

A heartbeat counts only if all these nodes have already sent one back in this cycle. So where a node counts one, the
leader relies on them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from supervisor.core.fence_times import confirmers
from supervisor.core.leader_ledger import Ledger


class LeaderHeartbeat(msgspec.Struct, frozen=True):
    """The node sends it back unchanged."""

    sent_at_s: float  # by the clock of the leader
    cycle: int
    counts: bool  # all nodes have sent one of this cycle back before


class HeardLeader(msgspec.Struct, frozen=True):
    """What a node knows of the last heartbeat that counted."""

    cycle: int
    at_s: float  # by the clock of the node


class State(msgspec.Struct, frozen=True):
    """Of one lead. `confirmed_at_s`: when the last heartbeat was sent that each node has sent back; None: none was."""

    leader: str
    cycle: int = -1
    confirmed_at_s: Mapping[str, float | None] = {}


def with_ledger(state: State, recorded: Ledger | None) -> State:
    """Follows the cycle. `recorded`: the last ledger of this lead that is kept.

    No node need confirm while no cycle runs: the next leader waits longer then.
    """
    if recorded is None or not recorded.is_running:
        return State(state.leader)
    names = confirmers(recorded.parts, state.leader, recorded.vacant)
    if recorded.cycle == state.cycle and tuple(state.confirmed_at_s) == names:
        return state
    before = state if recorded.cycle == state.cycle else State(state.leader)
    return State(state.leader, recorded.cycle, {each: before.confirmed_at_s.get(each) for each in names})


def heartbeats(state: State, now_s: float) -> dict[str, LeaderHeartbeat]:
    """Returns what is sent now, and to which nodes."""
    counts = last_confirmed_s(state) is not None
    return {node: LeaderHeartbeat(now_s, state.cycle, counts=counts) for node in state.confirmed_at_s}


def confirmed(state: State, node: str, heartbeat: LeaderHeartbeat) -> State:
    """Notes one that was sent back."""
    if heartbeat.cycle != state.cycle or node not in state.confirmed_at_s:
        return state
    before_s = state.confirmed_at_s[node]
    at_s = heartbeat.sent_at_s if before_s is None else max(before_s, heartbeat.sent_at_s)
    return msgspec.structs.replace(state, confirmed_at_s={**state.confirmed_at_s, node: at_s})


def last_confirmed_s(state: State) -> float | None:
    """Returns when the last heartbeat was sent that any node has sent back; None: not all of them ever have."""
    times_s = [each for each in state.confirmed_at_s.values() if each is not None]
    return max(times_s) if times_s and len(times_s) == len(state.confirmed_at_s) else None


def heard(heartbeat: LeaderHeartbeat, now_s: float) -> HeardLeader | None:
    """Returns what the node knows after this heartbeat."""
    return HeardLeader(heartbeat.cycle, now_s) if heartbeat.counts else None
