"""When may an order of an elected leader go out?

In its turn, only after everything recorded before it is kept, and only while the lead is valid: later another node may
lead, and nodes must never obey two leaders. Orders that wait when the lead is lost never go out.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

import msgspec

from supervisor.core.leader_ledger import Ledger
from supervisor.core.orders import Order, Resign

WRITE_AGAIN_S = 0.2

# --- events --------------------------------------------------------------------------------------------------------


class OrderGiven(msgspec.Struct, frozen=True):
    node: str
    order: Order


class LedgerChanged(msgspec.Struct, frozen=True):
    """The coordinator has decided something that the next leader must know. Later orders follow from it."""

    ledger: Ledger


class LedgerDoubted(msgspec.Struct, frozen=True):
    """The backend may have lost what was written. It is written again, if this lead has written anything."""


class LedgerWritten(msgspec.Struct, frozen=True):
    """The backend keeps what was last written."""


class LedgerNotWritten(msgspec.Struct, frozen=True):
    """The backend did not answer, or refused. The write may still arrive."""


class LeadRenewed(msgspec.Struct, frozen=True):
    valid_until_s: float


class NodeForgotten(msgspec.Struct, frozen=True):
    """The node is lost. If it comes back, it does not know its earlier orders."""

    node: str


class DeadlineReached(msgspec.Struct, frozen=True):
    pass


Event = (
    OrderGiven | LedgerChanged | LedgerDoubted | LedgerWritten | LedgerNotWritten | LeadRenewed | NodeForgotten
    | DeadlineReached
)  # fmt: skip

# --- actions -------------------------------------------------------------------------------------------------------


class Deliver(msgspec.Struct, frozen=True):
    node: str
    order: Order


class WriteLedger(msgspec.Struct, frozen=True):
    """Write it to the backend, and answer with LedgerWritten or LedgerNotWritten. One at a time."""

    ledger: Ledger


class EndLead(msgspec.Struct, frozen=True):
    """Tell the backend that this node no longer leads. All that was decided before is kept."""

    reason: str


Action = Deliver | WriteLedger | EndLead

# --- the machine ---------------------------------------------------------------------------------------------------


class State(msgspec.Struct, frozen=True):
    """The gate of one lead. `waiting` is changed in place: thousands of orders may wait for one write."""

    valid_until_s: float
    witnesses: frozenset[str] = frozenset()  # of the ledger as it is kept and, if there are any, as it may be
    recorded: Ledger | None = None  # the last one of this lead that is kept
    waits_since_s: float | None = None  # None: nothing waits
    writes: Ledger | None = None  # now
    is_doubted: bool = False  # that write may be lost, whatever its answer
    writes_from_s: float = 0.0  # after a failure
    waiting: deque[OrderGiven | Ledger] = msgspec.field(default_factory=deque[OrderGiven | Ledger])


def step(state: State, event: Event, *, now_s: float) -> tuple[State, tuple[Action, ...]]:
    match event:
        case OrderGiven():
            if not state.waiting and now_s < state.valid_until_s:
                return state, (_out(event),)
            return _put(state, event, now_s), ()
        case LedgerChanged(ledger):
            if state.waiting and isinstance(state.waiting[-1], Ledger):
                state.waiting.pop()  # no order depends on it alone
            return _put(state, ledger, now_s), ()  # written once the turn is over: a later one may replace it
        case LedgerDoubted():
            if state.writes is not None:
                return msgspec.structs.replace(state, is_doubted=True), ()
            if state.recorded is None or any(isinstance(each, Ledger) for each in state.waiting):
                return state, ()
            return _put(state, state.recorded, now_s), ()
        case LedgerWritten() if state.is_doubted:
            return _go(msgspec.structs.replace(state, writes=None, is_doubted=False), now_s)  # once more
        case LedgerWritten():
            return _go(_written(state), now_s)
        case LedgerNotWritten():
            return msgspec.structs.replace(
                state, writes=None, is_doubted=False, writes_from_s=now_s + WRITE_AGAIN_S
            ), ()
        case LeadRenewed(valid_until_s):
            return _go(msgspec.structs.replace(state, valid_until_s=valid_until_s), now_s)
        case NodeForgotten(node):
            kept = [each for each in state.waiting if isinstance(each, Ledger) or each.node != node]
            return _go(msgspec.structs.replace(state, waiting=deque(kept)), now_s)
        case DeadlineReached():
            return _go(state, now_s)
        case _:
            assert_never(event)


def next_deadline_s(state: State) -> float | None:
    waits_to_write = state.writes is None and state.waiting and isinstance(state.waiting[0], Ledger)
    return state.writes_from_s if waits_to_write else None


def _out(given: OrderGiven) -> Deliver | EndLead:
    return EndLead(given.order.reason) if isinstance(given.order, Resign) else Deliver(given.node, given.order)


def _put(state: State, item: OrderGiven | Ledger, now_s: float) -> State:
    state.waiting.append(item)
    return state if state.waits_since_s is not None else msgspec.structs.replace(state, waits_since_s=now_s)


def _written(state: State) -> State:
    written, waiting = state.writes, state.waiting
    assert written is not None, "one write, one answer"
    state = msgspec.structs.replace(state, writes=None, witnesses=frozenset(written.witnesses))
    if not waiting or waiting[0] is not written:
        return state  # a newer one must be written next
    waiting.popleft()
    return msgspec.structs.replace(state, recorded=written)


def _go(state: State, now_s: float) -> tuple[State, tuple[Action, ...]]:
    """Lets out what may go out now."""
    actions: list[Action] = []
    waiting, waits_since_s = state.waiting, state.waits_since_s
    while waiting:
        first = waiting[0]
        if isinstance(first, Ledger):
            if state.writes is None and now_s >= state.writes_from_s:
                # Without witnesses, this leader answers only while it is sure that it leads. While what is kept names
                # none, another leader need not meet any.
                is_named = state.witnesses and first.witnesses
                witnesses = state.witnesses | frozenset(first.witnesses) if is_named else frozenset[str]()
                state = msgspec.structs.replace(state, writes=first, witnesses=witnesses)
                actions.append(WriteLedger(first))
            break
        if now_s >= state.valid_until_s:
            break
        waiting.popleft()
        waits_since_s = now_s
        actions.append(_out(first))
    return msgspec.structs.replace(state, waits_since_s=waits_since_s if waiting else None), tuple(actions)
