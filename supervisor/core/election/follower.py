"""What does a node do once the leader of its job is lost, if no other node can lead?

Its workers end at once: nobody else would end them, and the leader may replace this node soon. If the leader may only
have stalled, or have been cut off, the node looks for it again, as a new process would, for as long as a leader
waits for nodes; otherwise the job ends here.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from supervisor.core import orders
from supervisor.core.cluster import cluster_messages as cluster
from supervisor.core.facts import JobState, Verdict

# --- events --------------------------------------------------------------------------------------------------------


class Said(msgspec.Struct, frozen=True):
    """The node reports to the job's coordinator."""

    report: cluster.Event


class LeaderLost(msgspec.Struct, frozen=True):
    """`may_return`: see leader_loss_detection.GiveUp."""

    why: str
    may_return: bool = False


Event = Said | LeaderLost

# --- actions -------------------------------------------------------------------------------------------------------


class Report(msgspec.Struct, frozen=True):
    """For the leader."""

    report: cluster.Event


class Obey(msgspec.Struct, frozen=True):
    """For this node."""

    order: orders.Order


class Seek(msgspec.Struct, frozen=True):
    """Look for the leader again, as another process of this node: the leader has given this one up, or will."""


Action = Report | Obey | Seek

# --- the machine ---------------------------------------------------------------------------------------------------


class State(msgspec.Struct, frozen=True):
    lost: str = ""  # why there is no leader any more
    has_stopped: bool = False  # as reported
    is_new: bool = False  # the leader hears first how this node stands: that includes earlier reports


def step(state: State, event: Event, *, now_s: float) -> tuple[State, tuple[Action, ...]]:
    del now_s  # no time passes here: the connection says when its leader is lost
    match event:
        case Said(report):
            if isinstance(report, cluster.NodeStopped):
                state = msgspec.structs.replace(state, has_stopped=True)
            if state.lost:
                return state, _conclusion(state)
            if state.is_new and not isinstance(report, cluster.NodeStands):
                return state, ()
            return msgspec.structs.replace(state, is_new=False) if state.is_new else state, (Report(report),)
        case LeaderLost(why, may_return):
            if state.lost:
                return state, ()
            if may_return and not state.has_stopped:
                waits = orders.StandBack(f"{why}; this node waits for it")
                state = msgspec.structs.replace(state, is_new=True)
                return state, (Obey(waits), Seek(), Obey(orders.Introduce()))
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
