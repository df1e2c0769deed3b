"""What do the events of all jobs add up to: faults, restarts by cause, durations of recoveries?"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter

import msgspec

from supervisor.core.event_kinds import KINDS
from supervisor.core.event_weights import CAUSES, ENDS, SETTLED, Weight
from supervisor.ports.reports import RecordedEvent

# A quantile never exceeds the last bound. Each bound is a series for each phase on each node.
BUCKETS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
STOP, START, WHOLE, INSIDE = "stop", "start", "whole", "inside_process"
ELSEWHERE = "another_node"  # the cause if nothing on this node led to the restart
JOBS_MAX = 1024  # with an open recovery
STALE_NS = 120 * 10**9  # an older fault without effect is not taken for the cause of later events
_OWN_CAUSES = CAUSES | {name for name, kind in KINDS.items() if kind.weight is Weight.FAULT}
RESTART_CAUSES = _OWN_CAUSES | {INSIDE, ELSEWHERE}


class Histogram(msgspec.Struct):
    """Counts recoveries by upper bounds of their duration; the last bucket has no bound."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, took_s: float) -> None:
        self.counts[bisect_left(BUCKETS_S, took_s)] += 1
        self.sum_s += took_s


class _Recovery(msgspec.Struct):
    """A recovery of one job's workers on this node, from the fault on. Moments are Unix nanoseconds; 0: not yet."""

    cause: str = ""
    began_ns: int = 0
    is_acted_on: bool = False  # workers are being stopped, or a restart is decided
    is_counted: bool = False
    stopped_ns: int = 0
    interrupted_ns: int = 0

    def is_stale(self, now_ns: int) -> bool:
        """Returns whether its fault has led to nothing for too long."""
        return self.began_ns > 0 and not self.is_acted_on and now_ns - self.began_ns > STALE_NS


class EventCounters:
    """Counts events since this supervisor's start. `take` never blocks and never raises."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()  # kind
        self.restarts: Counter[str] = Counter()  # cause: the kind of the event that led to it
        self.recoveries: dict[str, Histogram] = {name: Histogram() for name in (STOP, START, WHOLE, INSIDE)}
        self.lost_s = 0.0  # between a fault and the moment when all workers run again
        self._open: dict[str, _Recovery] = {}

    def take(self, event: RecordedEvent) -> None:
        self.events[event.kind] += 1
        if event.kind in ENDS:
            self._open.pop(event.job_id, None)
            return
        found = self._open.setdefault(event.job_id, _Recovery())
        if len(self._open) > JOBS_MAX:
            del self._open[next(iter(self._open))]
        if found.is_stale(event.at_ns):
            # An interrupted call stays noted: its restart may take longer.
            found = self._open[event.job_id] = _Recovery(interrupted_ns=found.interrupted_ns)
        self._follow(found, event)

    def _follow(self, found: _Recovery, event: RecordedEvent) -> None:
        match event.kind:
            case "restart_decided":
                self.restarts[found.cause or ELSEWHERE] += 1
                found.began_ns, found.is_acted_on, found.is_counted = found.began_ns or event.at_ns, True, True
            case "workers_stopping":
                found.began_ns, found.is_acted_on = found.began_ns or event.at_ns, True
            case "workers_stopped":
                found.stopped_ns, found.is_acted_on = event.at_ns, True  # perhaps with a lost spawner
            case "running_again" if found.began_ns:
                self._recovered(found, event.at_ns)
                self._open[event.job_id] = _Recovery()
            case "iteration_interrupted":
                found.interrupted_ns = event.at_ns
            case "iteration_restarted":
                if found.interrupted_ns:
                    self.restarts[INSIDE] += 1
                    self.lost_s += self._add(INSIDE, found.interrupted_ns, event.at_ns)
                self._open[event.job_id] = _Recovery()
            case kind if kind in SETTLED:
                self._open[event.job_id] = _Recovery()
            case kind if kind in _OWN_CAUSES:
                if not found.cause:
                    found.cause, found.began_ns = kind, event.at_ns
            case _:
                pass

    def _recovered(self, found: _Recovery, at_ns: int) -> None:
        """Ends a recovery: all workers of this node run again. The job's leader has counted the restart already."""
        if not found.is_counted:
            self.restarts[found.cause or ELSEWHERE] += 1
        if found.stopped_ns:
            self._add(STOP, found.began_ns, found.stopped_ns)
            self._add(START, found.stopped_ns, at_ns)
        self.lost_s += self._add(WHOLE, found.began_ns, at_ns)

    def _add(self, phase: str, from_ns: int, to_ns: int) -> float:
        took_s = max(0, to_ns - from_ns) / 1e9
        self.recoveries[phase].add(took_s)
        return took_s


class EventCounterHandler(logging.Handler):
    """Passes events in the log to the counters, including those that the log itself leaves out."""

    def __init__(self, counters: EventCounters) -> None:
        super().__init__()
        self._counters = counters

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if isinstance(event, RecordedEvent):
            self._counters.take(event)
