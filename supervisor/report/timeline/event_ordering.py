"""When did each event happen, as precisely as the clocks of several nodes allow?"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

import msgspec

from supervisor.ports.reports import RecordedEvent

# In the details of an event of another node: when it arrived here, and when it was sent by that node's clock.
ARRIVED = "arrived_at_ns"
TOLD = "told_at_ns"
_MOMENT = re.compile(r"[0-9]{1,19}")
LATE_NS = 5 * 10**9  # clocks that differ by less count as one


def moment_ns(event: RecordedEvent) -> int:
    """Returns when an event happened, by this node's clock if the clock of the event's node is far off.

    An event may be told long after it happened, as to a new leader: only the moment of telling compares the clocks.
    """
    details = dict(event.details)
    arrived_at_ns = _moment(details.get(ARRIVED, ""), event.at_ns)
    here_ns = event.at_ns + arrived_at_ns - _moment(details.get(TOLD, ""), event.at_ns)
    return here_ns if abs(here_ns - event.at_ns) > LATE_NS else event.at_ns


def _moment(text: str, otherwise_ns: int) -> int:
    return int(text) if _MOMENT.fullmatch(text) else otherwise_ns


def in_order(events: Iterable[RecordedEvent]) -> list[RecordedEvent]:
    """Returns all events in order of time; `at_ns` is the time that counts.

    A cycle begins after the one before it has ended on all nodes. So events of a cycle come before another node's
    beginning of the next one, even if that node's clock is a little behind.
    """
    placed = sorted(events, key=lambda event: (moment_ns(event), event.sequence))
    timed = [
        event if moment_ns(event) == event.at_ns else msgspec.structs.replace(event, at_ns=moment_ns(event))
        for event in placed
    ]
    begun: dict[int, dict[str, int]] = {}  # by cycle and node
    for event in timed:
        if event.kind == "cycle_started":
            begun.setdefault(event.cycle, {}).setdefault(event.node, event.at_ns)
    next_begun = {cycle: begun[after] for cycle, after in itertools.pairwise(sorted(begun))}
    return sorted(timed, key=lambda event: _place(event, next_begun.get(event.cycle, {})))


def _place(event: RecordedEvent, next_begun_ns: Mapping[str, int]) -> tuple[int, bool]:
    """Returns where an event comes. `next_begun_ns`: when each node began the next cycle, the first one first."""
    if next_begun_ns and event.at_ns <= next_begun_ns.get(event.node, event.at_ns):
        first_ns = next(iter(next_begun_ns.values()))
        if first_ns <= event.at_ns < first_ns + LATE_NS:
            return first_ns, False
    return event.at_ns, True
