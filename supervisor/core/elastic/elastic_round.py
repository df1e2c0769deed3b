"""When does a round of torchrun's agents begin, with which of them, and when must its members come to the next one?

The semantics are torch's. A round begins once the maximum number of agents has joined, or the minimum has joined and
the last call is over. It never begins while a member of the previous round may still run workers; agents that join
meanwhile wait. Two things differ. Members learn of a lost member at once, not from their workers' errors. The last call
of a later round ends as soon as every agent that the leader knows has joined.

The state holds dicts with an entry for each agent, which `step` changes in place. So an event costs the same however
many agents there are, unless all of them receive a message.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import assert_never

import msgspec

from supervisor.core.elastic.elastic_agreement import disagreement
from supervisor.core.elastic.elastic_messages import (
    Action,
    AgentClosed,
    AgentJoined,
    AgentLeft,
    AgentLost,
    BeginRound,
    DeadlineReached,
    ElasticRules,
    Event,
    Refusal,
    RefuseAgent,
    RoundStoreServed,
    Send,
    ServeRoundStore,
    TellClosed,
    TellSpares,
    TellWaiting,
)

STORE_S = 30.0  # from the order to serve a store to the answer
NAMED_MAX = 8  # agents in a sentence

Actions = tuple[Action, ...]

# --- states --------------------------------------------------------------------------------------------------------


class Gathering(msgspec.Struct, frozen=True):
    """No round is complete. Members of the last one may still run workers."""

    since_s: float
    reason: str
    last_call_until_s: float | None = None


class OpeningStore(msgspec.Struct, frozen=True):
    """The members are chosen, and the first of them opens the store."""

    members: tuple[str, ...]
    until_s: float
    reason: str


class Running(msgspec.Struct, frozen=True):
    members: tuple[str, ...]


class Closed(msgspec.Struct, frozen=True):
    reason: str
    failed: bool


Phase = Gathering | OpeningStore | Running | Closed


class Waiter(msgspec.Struct, frozen=True):
    """An agent that has joined."""

    since_s: float
    order: int
    was_member: bool  # of the previous round: comes before others if there is not room for all
    join_timeout_s: float  # how long this one waits


class State(msgspec.Struct):
    phase: Phase
    rules: ElasticRules | None = None  # of the first agent
    waits_differ: bool = False  # an agent waits for another time than the first one
    round: int = -1  # the newest; -1: none yet
    known: dict[str, None] = {}  # all agents that are connected and have joined once
    waiting: dict[str, Waiter] = {}  # those that wait for a round, the longest first
    busy: dict[str, None] = {}  # members of the newest round that may still run workers
    told_waiting: int = 0  # the number last sent to the busy ones
    told_spares: bool = False  # the same, whether there are spares


# --- decisions -----------------------------------------------------------------------------------------------------


def initial_state(now_s: float) -> State:
    return State(Gathering(now_s, "the job starts"))


def step(state: State, event: Event, *, now_s: float) -> tuple[State, Actions]:
    match event:
        case AgentJoined():
            actions = _join(state, event, now_s)
        case AgentLeft(node, reason):
            actions = _remove(state, node, f"node {node} has left: {reason}", now_s)
        case AgentLost(node, reason):
            actions = _remove(state, node, reason, now_s)
        case AgentClosed():
            actions = _close(state, event, now_s)
        case RoundStoreServed():
            actions = _begin(state, event)
        case DeadlineReached():
            actions = _expire(state, now_s)
        case _:
            assert_never(event)
    return state, (*actions, *_complete(state, now_s), *_tell_waiting(state), *_tell_spares(state))


def next_deadline_s(state: State) -> float | None:
    match state.phase:
        case Gathering(last_call_until_s=last_call_until_s):
            found = (each for each in (last_call_until_s, _join_deadline_s(state)) if each is not None)
            return min(found, default=None)
        case OpeningStore(until_s=until_s):
            return until_s
        case Running() | Closed():
            return None
        case _:
            assert_never(state.phase)


def _join(state: State, event: AgentJoined, now_s: float) -> Actions:
    if isinstance(state.phase, Closed):
        return (_refuse(event.node, Refusal.CLOSED, state.phase.reason),)
    if state.rules is None or not state.known:
        state.rules = event.rules
    elif different := disagreement(event.rules, state.rules):
        return (_refuse(event.node, Refusal.STATE, different),)
    state.waits_differ |= event.rules.join_timeout_s != state.rules.join_timeout_s
    was_busy = event.node in state.busy
    if was_busy or _is_member(state, event.node):
        _reopen(state, f"node {event.node} joins again", now_s)
    state.busy.pop(event.node, None)
    state.known[event.node] = None
    before = state.waiting.pop(event.node, None)
    was_member = was_busy or (before is not None and before.was_member)
    state.waiting[event.node] = Waiter(now_s, event.order, was_member, event.rules.join_timeout_s)
    return ()


def _remove(state: State, node: str, reason: str, now_s: float) -> Actions:
    if node in state.busy or _is_member(state, node):
        _reopen(state, reason, now_s)
    state.known.pop(node, None)
    state.waiting.pop(node, None)
    state.busy.pop(node, None)
    return ()


def _close(state: State, event: AgentClosed, now_s: float) -> Actions:
    """Handles a close. A failing agent outside the group ends nothing but itself."""
    if isinstance(state.phase, Closed) or event.node not in state.known:
        return ()
    if event.failed and not _belongs(state, event.node):
        return _remove(state, event.node, f"node {event.node} has left: {event.reason}", now_s)
    under_way = isinstance(state.phase, Running)
    reason = f"node {event.node} has closed the rendezvous: {event.reason}"
    state.phase = Closed(reason, event.failed)
    refusal = Refusal.SURPLUS if under_way and not event.failed else Refusal.CLOSED
    refused = tuple(_refuse(node, refusal, reason) for node in state.waiting)
    state.waiting.clear()
    return (*(Send(node, TellClosed(reason, event.failed)) for node in state.known), *refused)


def _begin(state: State, event: RoundStoreServed) -> Actions:
    phase = state.phase
    if not isinstance(phase, OpeningStore) or (event.node, event.round) != (phase.members[0], state.round):
        return ()
    state.phase = Running(phase.members)
    state.told_waiting, state.told_spares = 0, False
    for node in phase.members:
        del state.waiting[node]
        state.busy[node] = None
    world_size = len(phase.members)
    return tuple(
        Send(node, BeginRound(state.round, rank, world_size, event.host, event.port, phase.reason))
        for rank, node in enumerate(phase.members)
    )


def _expire(state: State, now_s: float) -> Actions:
    """Handles deadlines, except the last call's, which `_complete` handles."""
    match state.phase:
        case Gathering():
            return _give_up(state, now_s)
        case OpeningStore(members, until_s, reason):
            if now_s < until_s:
                return ()
            _reopen(state, reason, now_s)
            del state.waiting[members[0]]
            return (_refuse(members[0], Refusal.STATE, f"it has not served the store within {STORE_S:g} s"),)
        case Running() | Closed():
            return ()
        case _:
            assert_never(state.phase)


def _give_up(state: State, now_s: float) -> Actions:
    """Refuses the agents whose own time is over."""
    late = {node: _missing(state, each.join_timeout_s) for node, until_s, each in _deadlines(state) if until_s <= now_s}
    for node in late:
        del state.waiting[node]
    return tuple(_refuse(node, Refusal.TIMEOUT, missing) for node, missing in late.items())


def _complete(state: State, now_s: float) -> Actions:
    """Chooses the members of the next round if it may begin; else notes how long the last call lasts."""
    phase, rules = state.phase, state.rules
    if not isinstance(phase, Gathering) or rules is None:
        return ()
    if state.busy or len(state.waiting) < rules.min_nodes:
        state.phase = msgspec.structs.replace(phase, last_call_until_s=None)
        return ()
    until_s = phase.last_call_until_s
    if until_s is None:
        until_s = now_s + rules.last_call_timeout_s
    all_have_joined = state.round >= 0 and len(state.waiting) == len(state.known)
    if len(state.waiting) < rules.max_nodes and not all_have_joined and now_s < until_s:
        state.phase = msgspec.structs.replace(phase, last_call_until_s=until_s)
        return ()
    state.round += 1
    members = _chosen(state.waiting, rules.max_nodes)
    state.phase = OpeningStore(members, now_s + STORE_S, phase.reason)
    return (Send(members[0], ServeRoundStore(state.round)),)


def _chosen(waiting: dict[str, Waiter], max_nodes: int) -> tuple[str, ...]:
    """Returns the members in the order of their ranks: by the scheduler's order, then by name."""
    candidates = sorted(waiting, key=lambda node: not waiting[node].was_member)[:max_nodes]
    return tuple(sorted(candidates, key=lambda node: (waiting[node].order < 0, waiting[node].order, node)))


def _tell_waiting(state: State) -> Actions:
    """Tells the members whether agents wait. The number is not updated, since it does not matter."""
    waiting, reason = _who_waits(state)
    if bool(waiting) == bool(state.told_waiting):
        return ()
    state.told_waiting = waiting
    return tuple(Send(node, TellWaiting(waiting, reason)) for node in state.busy)


def _tell_spares(state: State) -> Actions:
    """Tells the members of a full group whether others could form one without any of them."""
    spares = bool(state.waiting)
    if not isinstance(state.phase, Running) or _has_room(state, state.phase) or spares is state.told_spares:
        return ()
    state.told_spares = spares
    return tuple(Send(node, TellSpares(spares)) for node in state.busy)


def _who_waits(state: State) -> tuple[int, str]:
    match state.phase:
        case Gathering(reason=reason) | OpeningStore(reason=reason):
            return max(1, len(state.waiting)), reason
        case Running() as running:
            if not _has_room(state, running) or not state.waiting:
                return 0, ""
            return len(state.waiting), f"waiting to join: {_names(state.waiting)}"
        case Closed(reason, failed):
            return int(failed), reason
        case _:
            assert_never(state.phase)


def _has_room(state: State, running: Running) -> bool:
    return state.rules is not None and len(running.members) < state.rules.max_nodes


def _reopen(state: State, reason: str, now_s: float) -> None:
    if not isinstance(state.phase, Gathering | Closed):
        state.phase = Gathering(now_s, reason)


def _is_member(state: State, node: str) -> bool:
    """Returns whether the node is in the round that is opening its store; members of a running round are busy."""
    return isinstance(state.phase, OpeningStore) and node in state.phase.members


def _belongs(state: State, node: str) -> bool:
    """Returns whether the node belongs to the newest round's group, also while it joins again."""
    return node in state.busy or _is_member(state, node) or (node in state.waiting and state.waiting[node].was_member)


def _join_deadline_s(state: State) -> float | None:
    deadlines = (until_s for _, until_s, _ in _deadlines(state))
    # Usually all wait equally long, and the first is due first: thousands of agents are not looked through.
    return min(deadlines, default=None) if state.waits_differ else next(deadlines, None)


def _deadlines(state: State) -> Iterator[tuple[str, float, Waiter]]:
    """Yields until when each agent waits. Waiting for a running round to end does not count."""
    if isinstance(state.phase, Gathering):
        for node, each in state.waiting.items():
            yield node, max(each.since_s, state.phase.since_s) + each.join_timeout_s, each


def _missing(state: State, timeout_s: float) -> str:
    if state.rules is None:
        return ""
    here = f"{len(state.waiting)} of at least {state.rules.min_nodes} nodes have joined ({_names(state.waiting)})"
    late = f", and the workers of {_names(state.busy)} have not stopped" if state.busy else ""
    return f"{here} within {timeout_s:g} s{late}"


def _names(nodes: Iterable[str]) -> str:
    return ", ".join(itertools.islice(nodes, NAMED_MAX))


def _refuse(node: str, refusal: Refusal, reason: str) -> Send:
    return Send(node, RefuseAgent(refusal, reason))
