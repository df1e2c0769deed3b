"""What do programs read of an event, in `events -o jsonl` and --on-event? Keys may be added, none renamed."""

from __future__ import annotations

from datetime import UTC, datetime

from supervisor.ports.reports import RecordedEvent


def event_document(event: RecordedEvent) -> dict[str, object]:
    return {
        "at": timestamp(event.at_ns),
        "job_id": event.job_id,
        "cycle": event.cycle,
        "iteration": event.iteration,
        "node": event.node,
        "rank": event.rank,
        "kind": event.kind,
        "reason": event.reason,
        "sequence": event.sequence,
        "details": dict(event.details),
    }


def timestamp(at_ns: int) -> str:
    """Formats a time as ISO 8601 in UTC, with microseconds."""
    moment = datetime.fromtimestamp(at_ns // 10**9, UTC).replace(microsecond=at_ns % 10**9 // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
