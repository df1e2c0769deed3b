"""When does a leader end a silent connection, and when is a node lost to it?

A node may lose its connection and come back. It is lost after LOST_S of silence: by then it has ended its own workers
(leader_loss_detection.py). Only time in which the leader listened counts, since it may be new or may have stalled.
A stall lasts until the next DeadlineReached: there is at most one in a turn of the event loop, in which many other
events may be handled, and nothing read. Right after a stall, only a silence is judged that was long enough two turns
before: what had come by then has been handled. So a leader whose turns are all late judges, too. Waiting longer is
always safe.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import assert_never

import msgspec

from supervisor.core.cluster.cluster_messages import NodeHeard, NodeLost, NodeSilent
from supervisor.core.election import link_silence

LOST_S = 5.0  # from the last message of a node; more than fence.FENCE_S
CHECK_S = 0.5  # between two checks for silent connections, of all that are due by then
STALLS_MAX = 32  # the newest are kept; a node silent through more of them is already decided
TURNS = 3  # one to note what had come by then, one to read it, one to handle it
NOT_BACK = "it has not come back to the leader's new supervisor"


class Link(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """The connection of a node, or the one by which it relays others."""

    node: str
    is_relay: bool = False


# --- events --------------------------------------------------------------------------------------------------------


class NodeKnown(msgspec.Struct, frozen=True):
    """The leader's previous process knew this node. It may come back."""

    node: str


class LinkUp(msgspec.Struct, frozen=True):
    """Also if the connection before it has not ended."""

    link: Link


class LinkLost(msgspec.Struct, frozen=True):
    link: Link
    why: str
    heard_at_s: float  # by whichever connection


class Heard(msgspec.Struct, frozen=True):
    """The answer to AskHeard. `waits_since_s`: see link_silence.death."""

    link: Link
    at_s: float
    waits_since_s: float | None = None


class NodeDropped(msgspec.Struct, frozen=True):
    """Nothing more can be said to this process of the node. `comes_again`: its next one is connected."""

    node: str
    why: str
    comes_again: bool = False


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = NodeKnown | LinkUp | LinkLost | Heard | NodeDropped | DeadlineReached

# --- actions -------------------------------------------------------------------------------------------------------


class AskHeard(msgspec.Struct, frozen=True):
    """Answer with Heard, at once."""

    link: Link


class EndLink(msgspec.Struct, frozen=True):
    link: Link
    why: str


class GiveUp(msgspec.Struct, frozen=True):
    """Never hear this process of the node again."""

    node: str


class Report(msgspec.Struct, frozen=True):
    """To the coordinator."""

    report: NodeSilent | NodeHeard | NodeLost


Action = AskHeard | EndLink | GiveUp | Report

# --- the machine ---------------------------------------------------------------------------------------------------


class _Status(msgspec.Struct):
    due_s: float  # to be asked when it was heard, or to be given up
    is_up: bool
    heard_at_s: float = 0.0  # while it is not up
    why: str = ""  # it is not up
    is_silent: bool = False  # its connection was ended for that


class State(msgspec.Struct, frozen=True):
    """One leader's links. The three collections are changed in place: there may be thousands of nodes."""

    leads_since_s: float
    checks_at_s: float
    judges_from_s: float  # after a stall, received messages are handled first
    stalls: tuple[tuple[float, float], ...] = ()  # (from, to), in order
    is_stalled: bool = False  # the last one has not ended yet
    late_turns: tuple[float, ...] = ()  # when the newest stalls ended
    links: dict[Link, _Status] = msgspec.field(default_factory=dict[Link, _Status])
    checks: list[tuple[float, Link]] = msgspec.field(default_factory=list[tuple[float, Link]])  # a heap
    silences: list[tuple[float, Link]] = msgspec.field(default_factory=list[tuple[float, Link]])  # a heap


def initial_state(*, now_s: float) -> State:
    return State(now_s, checks_at_s=now_s + CHECK_S, judges_from_s=now_s)


def step(state: State, event: Event, *, now_s: float) -> tuple[State, tuple[Action, ...]]:
    state = _after_stall(state, event, now_s)
    match event:
        case NodeKnown(node):
            return state, _wait(state, Link(node), NOT_BACK, now_s, heard_at_s=now_s)
        case LinkUp(link):
            before = state.links.get(link)
            _check_later(state, link, now_s, heard_at_s=now_s)
            is_back = before is not None and not before.is_up
            return state, (Report(NodeHeard(link.node)),) if is_back else ()
        case LinkLost(link, why, heard_at_s):
            status = state.links.get(link)
            if status is None or not status.is_up:
                return state, ()
            if link.is_relay:
                del state.links[link]
                return state, ()
            return state, _wait(state, link, why, now_s, heard_at_s=heard_at_s, is_silent=status.is_silent)
        case Heard(link, at_s, waits_since_s):
            status = state.links.get(link)
            if status is None or not status.is_up:
                return state, ()
            by_s = _judges_by_s(state, now_s)
            if why := link_silence.death(heard_at_s=at_s, waits_since_s=waits_since_s, now_s=by_s):
                status.is_silent = by_s - at_s >= link_silence.SILENCE_S
                return state, (EndLink(link, why),)
            _check_later(state, link, now_s, heard_at_s=at_s)
            return state, ()
        case NodeDropped(node, why, comes_again):
            return state, _give_up(state, Link(node), why, comes_again=comes_again)
        case DeadlineReached():
            return _check(state, now_s)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float:
    if not state.silences:
        return state.checks_at_s
    return min(state.checks_at_s, max(state.silences[0][0], state.judges_from_s))


def _after_stall(state: State, event: Event, now_s: float) -> State:
    """Notes a stall that has begun or still lasts. Silences are judged once what arrived meanwhile is handled."""
    from_s, stalls = next_deadline_s(state), state.stalls
    if state.is_stalled:
        from_s, stalls = stalls[-1][0], stalls[:-1]
    elif now_s - from_s < link_silence.LATE_S:
        return state
    is_turn, soon_s = isinstance(event, DeadlineReached), now_s + CHECK_S
    return msgspec.structs.replace(
        state, stalls=(*stalls, (from_s, now_s))[-STALLS_MAX:], is_stalled=not is_turn,
        late_turns=(*state.late_turns, now_s)[-TURNS:] if is_turn else state.late_turns,
        checks_at_s=soon_s, judges_from_s=soon_s,
    )  # fmt: skip


def _judges_by_s(state: State, now_s: float) -> float:
    """Returns when a silence must have been long enough to be judged now: what had come by then has been handled."""
    if now_s >= state.judges_from_s:
        return now_s
    return state.late_turns[0] if len(state.late_turns) == TURNS else state.leads_since_s


def _check_later(state: State, link: Link, now_s: float, *, heard_at_s: float) -> None:
    due_s = link_silence.check_at_s(heard_at_s=heard_at_s, now_s=now_s)
    state.links[link] = _Status(due_s, is_up=True)
    heappush(state.checks, (due_s, link))


def _wait(
    state: State, link: Link, why: str, now_s: float, *, heard_at_s: float, is_silent: bool = False
) -> tuple[Action, ...]:
    """Waits for a node to come back."""
    due_s = max(now_s, _lost_at_s(state, heard_at_s))
    state.links[link] = _Status(due_s, is_up=False, heard_at_s=heard_at_s, why=why, is_silent=is_silent)
    heappush(state.silences, (due_s, link))
    return (Report(NodeSilent(link.node)),)


def _lost_at_s(state: State, heard_at_s: float) -> float:
    since_s = max(heard_at_s, state.leads_since_s)
    until_s = since_s + LOST_S
    for from_s, to_s in state.stalls:
        if to_s > since_s and from_s < until_s:
            until_s += to_s - max(from_s, since_s)
    return until_s


def _check(state: State, now_s: float) -> tuple[State, tuple[Action, ...]]:
    actions: list[Action] = []
    by_s = _judges_by_s(state, now_s)
    if by_s < now_s or now_s >= state.checks_at_s:
        state = msgspec.structs.replace(state, checks_at_s=now_s + CHECK_S)
        actions += [AskHeard(link) for link in _due(state, state.checks, by_s, is_up=True)]
    for link in _due(state, state.silences, by_s, is_up=False):
        status = state.links[link]
        status.due_s = _lost_at_s(state, status.heard_at_s)
        if by_s < status.due_s:  # the leader stalled meanwhile
            heappush(state.silences, (status.due_s, link))
            continue
        why = link_silence.silence(status.heard_at_s, now_s) if status.is_silent else status.why
        actions += _give_up(state, link, why)
    return state, tuple(actions)


def _due(state: State, heap: list[tuple[float, Link]], now_s: float, *, is_up: bool) -> list[Link]:
    """Takes what is due, the earliest first; what was decided otherwise since then is dropped."""
    due: dict[Link, None] = {}
    while heap and heap[0][0] <= now_s:
        due_s, link = heappop(heap)
        status = state.links.get(link)
        if status is not None and status.is_up is is_up and status.due_s == due_s:
            due[link] = None
    return list(due)


def _give_up(state: State, link: Link, why: str, *, comes_again: bool = False) -> tuple[Action, ...]:
    state.links.pop(link, None)
    return GiveUp(link.node), Report(NodeLost(link.node, f"node {link.node} is lost: {why}", comes_again))
