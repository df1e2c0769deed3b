"""When did each event happen, as well as the clocks of several nodes allow to say?"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from supervisor.ports import RecordedEvent

ARRIVED = "arrived_at_ns"  # the leader's time, in the details of an event of another node
LATE_NS = 5 * 10**9


def moment_ns(event: RecordedEvent) -> int:
    """Events of other nodes arrive later than they happen. One whose clock is far off happened when it arrived."""
    arrived_at_ns = int(dict(event.details).get(ARRIVED, event.at_ns))
    return arrived_at_ns if abs(arrived_at_ns - event.at_ns) > LATE_NS else event.at_ns


def in_order(events: Iterable[RecordedEvent]) -> list[RecordedEvent]:
    """All of them, by time; `at_ns` is the moment that counts."""
    placed = sorted(events, key=lambda event: (moment_ns(event), event.sequence))
    return [
        event if moment_ns(event) == event.at_ns else msgspec.structs.replace(event, at_ns=moment_ns(event))
        for event in placed
    ]
