"""Which events of a job make up one recovery, and which phases did it go through?"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from supervisor.core.event_weights import CAUSES, ENDS, SETTLED, Weight, weight
from supervisor.edges.operators.metrics.event_counters import JOBS_MAX, STALE_NS
from supervisor.ports.reports import RecordedEvent

EVENTS_MAX = 64  # per recovery; the last event is always kept
# In the order of a recovery: a phase → the kind of the event that ends it.
_PHASES = (
    ("decide", "workers_stopping"),
    ("stop", "workers_stopped"),
    ("rendezvous", "cycle_started"),
    ("start", "running_again"),
)
_INSIDE = (("interrupt", "iteration_interrupted"), ("restart", "iteration_restarted"))
_ACTS = frozenset({"restart_decided", "workers_stopping", "iteration_interrupted"})


class Recovery(msgspec.Struct, frozen=True):
    """One recovery. `events`: from the fault until the workers run again or the job has ended."""

    events: tuple[RecordedEvent, ...]

    @property
    def cause(self) -> RecordedEvent:
        """Returns the first fault; if this node had none, the recovery's first event here."""
        return next(filter(_is_fault, self.events), self.events[0])

    @property
    def end(self) -> RecordedEvent:
        return self.events[-1]

    @property
    def has_succeeded(self) -> bool:
        return self.end.kind not in ENDS

    def phases(self) -> Iterator[tuple[str, int, int]]:
        """Yields name, start and end of the phases in order. A phase without an ending event merges into the next."""
        began_ns = self.events[0].at_ns
        for name, kind in _INSIDE if self.end.kind == "iteration_restarted" else _PHASES:
            ended_ns = next((each.at_ns for each in self.events if each.kind == kind and each.at_ns >= began_ns), None)
            if ended_ns is not None and ended_ns > began_ns:
                yield name, began_ns, ended_ns
                began_ns = ended_ns


class Recoveries:
    """Collects the open recoveries of all jobs."""

    def __init__(self) -> None:
        self._open: dict[str, list[RecordedEvent]] = {}

    def take(self, event: RecordedEvent) -> Recovery | None:
        """Returns the recovery that this event ends, if any. Never blocks and never raises."""
        known = self._open.get(event.job_id)
        if known is None:
            if _opens(event):
                self._begin(event)
            return None
        is_acted_on = any(each.kind in _ACTS for each in known)
        if event.kind in SETTLED or (event.kind in ENDS and not (is_acted_on and _is_loss(event, known))):
            del self._open[event.job_id]
            return None
        if _opens(event) and not is_acted_on and event.at_ns - known[0].at_ns > STALE_NS:
            self._begin(event)
            return None
        if event.kind in ("running_again", "iteration_restarted") or event.kind in ENDS:
            del self._open[event.job_id]
            return Recovery((*known, event))
        if len(known) < EVENTS_MAX:
            known.append(event)
        return None

    def _begin(self, event: RecordedEvent) -> None:
        self._open.pop(event.job_id, None)
        self._open[event.job_id] = [event]
        if len(self._open) > JOBS_MAX:
            del self._open[next(iter(self._open))]


def _is_loss(end: RecordedEvent, known: list[RecordedEvent]) -> bool:
    """Returns whether a fault ended the job. Workers left over after a success are stopped, too."""
    return weight(end.kind) is Weight.LOSS and any(map(_is_fault, known))


def _is_fault(event: RecordedEvent) -> bool:
    return event.kind in CAUSES or (event.kind not in _ACTS and weight(event.kind) is Weight.FAULT)


def _opens(event: RecordedEvent) -> bool:
    return event.kind in _ACTS or _is_fault(event)
