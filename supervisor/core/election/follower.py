"""What does a node do once the leader of its job is lost, if no other node can lead?

Its workers end at once: nobody else would end them, and the leader may replace this node soon.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core import orders
from supervisor.core.cluster import messages as cluster
from supervisor.core.facts import JobState, Verdict

# --- events --------------------------------------------------------------------------------------------------------


class Said(msgspec.Struct, frozen=True):
    """The node reports to the job's coordinator."""

    report: cluster.Event


class LeaderLost(msgspec.Struct, frozen=True):
    why: str


Event = Said | LeaderLost

# --- actions -------------------------------------------------------------------------------------------------------


class Report(msgspec.Struct, frozen=True):
    """For the leader."""

    report: cluster.Event


class Obey(msgspec.Struct, frozen=True):
    """For this node."""

    order: orders.Order


Action = Report | Obey

# --- the machine ---------------------------------------------------------------------------------------------------


class State(msgspec.Struct, frozen=True):
    lost: str = ""  # why there is no leader any more
    has_stopped: bool = False  # as reported


def step(state: State, event: Event, *, now_s: float) -> tuple[State, tuple[Action, ...]]:
    del now_s  # no time passes here: the connection says when its leader is lost
    match event:
        case Said(report):
            if isinstance(report, cluster.NodeStopped):
                state = msgspec.structs.replace(state, has_stopped=True)
            return state, _conclusion(state) if state.lost else (Report(report),)
        case LeaderLost(why):
            if state.lost:
                return state, ()
            state = msgspec.structs.replace(state, lost=why)
            return state, (Obey(orders.WindDown(why, at_once=True)), *_conclusion(state))
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> None:
    del state


def _conclusion(state: State) -> tuple[Action, ...]:
    """Ends the job if the leader was lost while this node waited for its verdict: nobody else would."""
    if not state.has_stopped:
        return ()
    return (Obey(orders.Conclude(Verdict(JobState.FAILED, 1, state.lost))),)
