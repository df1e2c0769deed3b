"""What does the machine of wrapped calls request?"""

from __future__ import annotations

import msgspec

from supervisor.core.wrapped_calls.call_messages import CallRefused, ToRank


class Tell(msgspec.Struct, frozen=True):
    members: tuple[int, ...]
    order: ToRank


class Replace(msgspec.Struct, frozen=True):
    """Start new processes for these (node, member). `takes_unit`: a fault's first replacement uses one restart."""

    lost: tuple[tuple[str, int], ...]
    takes_unit: bool
    reason: str


class EndCall(msgspec.Struct, frozen=True):
    """The call has ended. `stands`: it was committed, so ranks lost on the way are not failures; else all are."""

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
