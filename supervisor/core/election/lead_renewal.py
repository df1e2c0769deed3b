"""When does an elected leader renew its lead, and when does it give it up?

It never steps down because the backend is away, as long as training goes on: only the backend can say that another node
may lead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from supervisor.core import fence_times

RENEWALS = 4  # within the life of a lead
# However long a lead lives: renewals also move the fence of this node, by UNCONFIRMED_S at least.
RENEWS_AFTER_S_MAX = 0.5
RENEW_TIMEOUT = 0.4  # as a share of a lead's life: one member of the backend may hang, another may answer
RENEW_TIMEOUT_S_MAX = 0.8
RENEW_AGAIN_S = 0.05

# --- events --------------------------------------------------------------------------------------------------------


class Renewed(msgspec.Struct, frozen=True):
    """The backend has renewed the lead."""


class NotRenewed(msgspec.Struct, frozen=True):
    """The backend did not answer, or refused. It did not say that the lead is lost."""


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = Renewed | NotRenewed | DeadlineReached

# --- actions -------------------------------------------------------------------------------------------------------


class Renew(msgspec.Struct, frozen=True):
    """Ask the backend, and answer with Renewed or NotRenewed, in `timeout_s` at the latest."""

    timeout_s: float


class ExtendLead(msgspec.Struct, frozen=True):
    """Orders may go out until then."""

    valid_until_s: float


class NobodyElseLeads(msgspec.Struct, frozen=True):
    """At `known_at_s`, no other node could replace this one."""

    known_at_s: float


class EndLead(msgspec.Struct, frozen=True):
    reason: str


Action = Renew | ExtendLead | NobodyElseLeads | EndLead

# --- the machine ---------------------------------------------------------------------------------------------------


class State(msgspec.Struct, frozen=True):
    ttl_s: float
    renewed_at_s: float  # when the renewal was asked for: the backend counts from a later moment
    asks_at_s: float
    asked_at_s: float | None = None  # None: no answer is awaited


def initial_state(ttl_s: float, *, asked_at_s: float, now_s: float) -> State:
    """Starts with the lead that the backend was asked for at `asked_at_s`."""
    return State(ttl_s, renewed_at_s=asked_at_s, asks_at_s=now_s)


def step(
    state: State,
    event: Event,
    *,
    now_s: float,
    heard_at_s: Sequence[float | None],
    confirmed_at_s: float | None,
    fence_until_s: float,
    waits_since_s: float | None,
    join_timeout_s: float,
) -> tuple[State, tuple[Action, ...]]:
    """Takes one event. `heard_at_s`: see `answers_until_s`. `confirmed_at_s`: see leader_heartbeats.last_confirmed_s.

    `fence_until_s`: of this node. `waits_since_s`: of its order gate.
    """
    match event:
        case DeadlineReached():
            if state.asked_at_s is not None or now_s < state.asks_at_s:
                return state, ()
            timeout_s = min(state.ttl_s * RENEW_TIMEOUT, RENEW_TIMEOUT_S_MAX)
            return msgspec.structs.replace(state, asked_at_s=now_s), (Renew(timeout_s),)
        case Renewed():
            assert state.asked_at_s is not None, "one question, one answer"
            renewed_at_s, next_s = state.asked_at_s, now_s + min(state.ttl_s / RENEWALS, RENEWS_AFTER_S_MAX)
            extends: tuple[Action, ...] = (ExtendLead(renewed_at_s + state.ttl_s),)
        case NotRenewed():
            renewed_at_s, next_s, extends = state.renewed_at_s, now_s + RENEW_AGAIN_S, ()
        case _:
            assert_never(event)
    state = State(state.ttl_s, renewed_at_s, asks_at_s=next_s)
    nobody = nobody_else_leads(state, now_s=now_s, heard_at_s=heard_at_s, confirmed_at_s=confirmed_at_s)
    why = ""
    if now_s - max(fence_until_s, nobody.known_at_s + fence_times.FENCE_S) > join_timeout_s:
        why = "its workers have ended, and the backend does not come back"
    elif waits_since_s is not None and now_s - waits_since_s > join_timeout_s:
        why = "what it has decided can't be ordered, and the backend does not come back"
    ends: tuple[Action, ...] = (EndLead(why),) if why else ()
    return state, (*extends, nobody, *ends)


def nobody_else_leads(
    state: State, *, now_s: float, heard_at_s: Sequence[float | None], confirmed_at_s: float | None
) -> NobodyElseLeads:
    """Returns since when, as of now: for the fence of the leader's own node. The parameters are those of `step`.

    A new ledger may name other nodes to confirm. Then the fence moves before the orders of its cycle go out, so that it
    does not end workers that are just being started.
    """
    return NobodyElseLeads(min(now_s, fence_times.leads_at_s(state.renewed_at_s, heard_at_s, confirmed_at_s)))


def answers_until_s(state: State, heard_at_s: Sequence[float | None]) -> float:
    """Returns until when the leader may answer. `heard_at_s`: when each witness was last heard; None: never."""
    return fence_times.answers_until_s(state.renewed_at_s, state.ttl_s, heard_at_s)


def next_deadline_s(state: State) -> float | None:
    return state.asks_at_s if state.asked_at_s is None else None
