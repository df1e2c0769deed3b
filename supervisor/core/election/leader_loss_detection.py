"""How long does a node wait for its leader, and when is the leader lost to it?

The leader may start later than its nodes, and a connection may break. The leader is lost FENCE_S after the node sent
the last message that the leader answered: soon after, the leader may replace the node (node_loss_detection.py), and two
groups of one job must never train at the same time.
"""

from __future__ import annotations

import math
from typing import assert_never

import msgspec

from supervisor.core.election import link_silence
from supervisor.core.fence_times import FENCE_S

DIRECTLY_S = 3.0  # so long before it gives up, a node waits for no relay any more; two attempts take up to 2 s
RANKS_DIRECTLY_S = 2.0  # the same before its ranks end
MISSED_S = 5.0  # until people learn that a leader has not answered so far
RETURNS_S = 30.0  # for so long, a leader that was lost may be stalled or cut off before it returns

# --- events --------------------------------------------------------------------------------------------------------


class Begun(msgspec.Struct, frozen=True):
    """The leader is looked for. `join_timeout_s`: for so long, if it was never reached.

    `again`: this node was in touch with it before, so it may have ended, and nobody starts it later: RETURNS_S at most.
    `ranks_until_s`: until when this node's ranks may run without it; once that is over, none run.
    """

    join_timeout_s: float
    again: bool = False
    ranks_until_s: float = math.inf


class NotReached(msgspec.Struct, frozen=True):
    """An attempt has failed. `is_gone`: the leader's node answers that nobody listens there."""

    why: str
    is_gone: bool = False


class LinkUp(msgspec.Struct, frozen=True):
    """`said_at_s`: when the message was sent that the leader answered with its welcome."""

    said_at_s: float


class Answered(msgspec.Struct, frozen=True):
    """The leader has answered the heartbeat that was sent at `said_at_s`."""

    said_at_s: float


class LinkLost(msgspec.Struct, frozen=True):
    why: str


class DeadlineReached(msgspec.Struct, frozen=True):
    """`heard_at_s`, `waits_since_s`: of the connection, if there is one; see link_silence.death."""

    heard_at_s: float = -math.inf
    waits_since_s: float | None = None


Event = Begun | NotReached | LinkUp | Answered | LinkLost | DeadlineReached

# --- actions -------------------------------------------------------------------------------------------------------


class SendHeartbeat(msgspec.Struct, frozen=True):
    """It carries the present time, for Answered."""


class EndLink(msgspec.Struct, frozen=True):
    why: str


class MoveFence(msgspec.Struct, frozen=True):
    """No leader is lost before `until_s`."""

    until_s: float


class GiveUp(msgspec.Struct, frozen=True):
    """The leader is lost. `may_return`: it may only have stalled, or have been cut off from this node."""

    why: str
    may_return: bool = False


class Say(msgspec.Struct, frozen=True):
    """A sentence for people, who would otherwise read nothing until the leader is lost or back."""

    text: str


Action = SendHeartbeat | EndLink | MoveFence | GiveUp | Say

# --- the machine ---------------------------------------------------------------------------------------------------


class State(msgspec.Struct, frozen=True):
    leader: str  # its address
    known_at_s: float | None = None  # when the last message that the leader answered was sent; None: never reached
    is_up: bool = False
    due_s: float = math.inf  # the next heartbeat, or the end of the search
    why: str = "it was never reached"  # there is no connection
    silent_since_s: float | None = None  # the last connection was ended for its silence
    is_gone: bool = False  # by the last attempt
    again: bool = False  # see Begun
    is_told: bool = False  # people know that it is looked for
    began_at_s: float = -math.inf  # the search
    ranks_until_s: float = math.inf  # see Begun


def step(state: State, event: Event, *, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match event:
        case Begun(join_timeout_s, again, ranks_until_s):
            seeks_s = min(join_timeout_s, RETURNS_S) if again else join_timeout_s
            until_s = now_s + seeks_s if state.known_at_s is None else state.known_at_s + FENCE_S
            ranks_until_s = ranks_until_s if now_s < ranks_until_s else math.inf
            state = msgspec.structs.replace(state, is_up=False, due_s=until_s, again=again, began_at_s=now_s)
            return msgspec.structs.replace(state, ranks_until_s=ranks_until_s), ()
        case NotReached(why, is_gone):
            ends_soon = is_gone and state.again and state.known_at_s is None  # A supervisor may be restarted.
            due_s = min(state.due_s, now_s + FENCE_S) if ends_soon else state.due_s
            state, said = _say(state, why, now_s)
            return msgspec.structs.replace(state, why=why, silent_since_s=None, is_gone=is_gone, due_s=due_s), said
        case LinkUp(said_at_s):
            answers = "answers" if state.known_at_s is None else "answers again"
            told = (Say(f"the leader at {state.leader} {answers}"),) if state.is_told else ()
            state = msgspec.structs.replace(
                state, is_up=True, known_at_s=said_at_s, silent_since_s=None, is_gone=False, is_told=False
            )
            state, actions = _beat(state, said_at_s, now_s, heard_at_s=now_s)
            return state, (MoveFence(said_at_s + FENCE_S), *actions, *told)
        case Answered(said_at_s):
            if state.known_at_s is None:
                return state, ()
            known_at_s = max(state.known_at_s, min(said_at_s, now_s))
            return msgspec.structs.replace(state, known_at_s=known_at_s), (MoveFence(known_at_s + FENCE_S),)
        case LinkLost(why):
            if state.known_at_s is None:
                return state, ()
            until_s, since_s = state.known_at_s + FENCE_S, state.silent_since_s
            state, said = (state, ()) if since_s is None else _say(state, link_silence.silence(since_s, now_s), now_s)
            return msgspec.structs.replace(state, is_up=False, due_s=until_s, why=why), said
        case DeadlineReached():
            return _judge(state, event, now_s) if now_s >= state.due_s else (state, ())
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    return state.due_s if state.due_s < math.inf else None


def is_obeyed(state: State, now_s: float) -> bool:
    """Returns whether an order that is heard now is obeyed: later, the leader may have replaced this node."""
    return state.known_at_s is None or now_s < state.known_at_s + FENCE_S


def may_wait_for_relay(state: State, now_s: float) -> bool:
    """Returns whether a node that looks for its leader may wait for a relay that is still to come.

    One that was connected may not have the time; nor may one whose ranks run until it has found the next leader.
    """
    until_s = min(state.due_s - DIRECTLY_S, state.ranks_until_s - RANKS_DIRECTLY_S)
    return state.known_at_s is None and now_s < until_s


def _say(state: State, why: str, now_s: float) -> tuple[State, tuple[Say, ...]]:
    """Says once that a leader that was known is looked for: after a silence, or a first attempt in vain.

    One that has never answered may start a little later than this node: that is said after MISSED_S.
    """
    if state.is_told or (state.known_at_s is None and now_s - state.began_at_s < MISSED_S):
        return state, ()
    text = f"the leader at {state.leader} is looked for: {why}"
    if state.known_at_s is None:
        text += f"; if it has not answered in another {state.due_s - now_s:.0f} s, the job ends here (join_timeout)"
    return msgspec.structs.replace(state, is_told=True), (Say(text),)


def _judge(state: State, event: DeadlineReached, now_s: float) -> tuple[State, tuple[Action, ...]]:
    if not state.is_up:
        since_s = state.silent_since_s
        why = state.why if since_s is None else link_silence.silence(since_s, now_s)
        may_return = state.known_at_s is not None and not state.is_gone
        state = msgspec.structs.replace(state, due_s=math.inf)
        return state, (GiveUp(f"the leader at {state.leader} is lost: {why}", may_return),)
    assert state.known_at_s is not None, "there is a connection"
    heard_at_s, waits_since_s = event.heard_at_s, event.waits_since_s
    is_late = now_s - state.due_s >= link_silence.LATE_S  # what was received meanwhile is handled first
    if not is_late and (why := link_silence.death(heard_at_s=heard_at_s, waits_since_s=waits_since_s, now_s=now_s)):
        silent_since_s = heard_at_s if now_s - heard_at_s >= link_silence.SILENCE_S else None
        return _end(msgspec.structs.replace(state, silent_since_s=silent_since_s), why)
    return _beat(state, state.known_at_s, now_s, heard_at_s=heard_at_s)


def _beat(state: State, known_at_s: float, now_s: float, *, heard_at_s: float) -> tuple[State, tuple[Action, ...]]:
    until_s = known_at_s + FENCE_S
    if now_s >= until_s:
        return _end(state, f"it has not answered for {now_s - known_at_s:.1f} s")
    silent_s = max(link_silence.LATE_S, heard_at_s + link_silence.SILENCE_S - now_s)
    due_s = now_s + min(link_silence.ALIVE_S, until_s - now_s, silent_s)
    return msgspec.structs.replace(state, due_s=due_s), (SendHeartbeat(),)


def _end(state: State, why: str) -> tuple[State, tuple[Action, ...]]:
    return msgspec.structs.replace(state, due_s=math.inf), (EndLink(why),)
