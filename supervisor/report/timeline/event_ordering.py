"""When did each event happen, as precisely as the clocks of several nodes allow?"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from supervisor.ports.reports import RecordedEvent

ARRIVED = "arrived_at_ns"  # the leader's time, in the details of an event of another node
_MOMENT = re.compile(r"[0-9]{1,19}")
LATE_NS = 5 * 10**9


def moment_ns(event: RecordedEvent) -> int:
    """Returns when an event happened; if its node's clock is far off, when it arrived here."""
    told = dict(event.details).get(ARRIVED, "")
    arrived_at_ns = int(told) if _MOMENT.fullmatch(told) else event.at_ns
    return arrived_at_ns if abs(arrived_at_ns - event.at_ns) > LATE_NS else event.at_ns


def in_order(events: Iterable[RecordedEvent]) -> list[RecordedEvent]:
    """Returns all events in order of time; `at_ns` is the time that counts."""
    placed = sorted(events, key=lambda event: (moment_ns(event), event.sequence))
    return [
        event if moment_ns(event) == event.at_ns else msgspec.structs.replace(event, at_ns=moment_ns(event))
        for event in placed
    ]
