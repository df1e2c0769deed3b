"""Which cycles did a job go through, and when did each begin, run and stop on all its nodes?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from supervisor.ports.reports import RecordedEvent
from supervisor.report.timeline.timeline import Cycle


class _Marks(msgspec.Struct):
    began_ns: int
    reason: str
    started_ns: dict[str, int] = msgspec.field(default_factory=dict[str, int])  # by node
    stopping_ns: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    stopped_ns: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    nodes: dict[str, None] = msgspec.field(default_factory=dict[str, None])
    ranks: set[int] = msgspec.field(default_factory=set[int])


def cycles_of(events: Sequence[RecordedEvent]) -> tuple[Cycle, ...]:
    """Returns the cycles. `events`: in order of time."""
    found: dict[int, _Marks] = {}
    for event in events:
        if event.kind in ("cycle_started", "worker_started", "workers_started"):
            marks = found.setdefault(event.cycle, _Marks(event.at_ns, ""))
            marks.nodes[event.node] = None
            if event.kind == "cycle_started":
                marks.reason = marks.reason or event.reason
            elif event.kind == "workers_started":
                marks.started_ns.setdefault(event.node, event.at_ns)
            elif event.rank is not None:
                marks.ranks.add(event.rank)
        elif event.kind in ("workers_stopping", "workers_stopped") and event.cycle in found:
            marks = found[event.cycle]
            at = marks.stopping_ns if event.kind == "workers_stopping" else marks.stopped_ns
            at.setdefault(event.node, event.at_ns)
    numbers = sorted(found)
    return tuple(
        _cycle(number, found[number], found[after].began_ns if after is not None else None)
        for number, after in zip(numbers, [*numbers[1:], None], strict=False)
    )


def _cycle(number: int, marks: _Marks, next_began_ns: int | None) -> Cycle:
    """Returns a cycle whose moments are in order, with none after the next cycle has begun."""
    stopping_ns = min(marks.stopping_ns.values(), default=next_began_ns)
    stopped_ns = max(marks.stopped_ns.values(), default=next_began_ns)
    started_ns = max(marks.started_ns.values(), default=None)
    floor_ns = marks.began_ns
    placed: list[int | None] = []
    for at_ns in (started_ns, stopping_ns, stopped_ns):
        if at_ns is not None:
            floor_ns = max(floor_ns, at_ns if next_began_ns is None else min(at_ns, next_began_ns))
        placed.append(None if at_ns is None else floor_ns)
    started_ns, stopping_ns, stopped_ns = placed
    if started_ns is not None and stopping_ns is not None:
        started_ns = min(started_ns, stopping_ns)
    return Cycle(
        number, marks.began_ns, started_ns, stopping_ns, stopped_ns, tuple(marks.nodes), len(marks.ranks), marks.reason
    )
