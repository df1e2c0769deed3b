"""What does the machine of wrapped calls ask for?"""

from __future__ import annotations

import msgspec

from supervisor.core.calls.words import CallRefused, ToRank


class Tell(msgspec.Struct, frozen=True):
    members: tuple[int, ...]
    order: ToRank


class Replace(msgspec.Struct, frozen=True):
    """Start new processes for these (node, member). `takes_unit`: the first of a fault takes one of the budget."""

    lost: tuple[tuple[str, int], ...]
    takes_unit: bool
    reason: str


class EndCall(msgspec.Struct, frozen=True):
    """`stands`: it was committed, and ranks lost on the way are no failure of the job. Else all of them are."""

    call: int
    stands: bool
    reason: str


class Say(msgspec.Struct, frozen=True):
    """Reports one event to people."""

    kind: str
    reason: str
    iteration: int
    rank: int | None = None
    details: tuple[tuple[str, str], ...] = ()


Order = Tell | Replace | EndCall | Say
Orders = list[Order]


def refuse(member: int, call: int, reason: str) -> Orders:
    """Has the rank raise this sentence."""
    return [Tell((member,), CallRefused(call, reason))]
