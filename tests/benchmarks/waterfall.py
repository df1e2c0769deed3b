"""Where does the time go from a worker's death to the first new step? Each phase ends with an event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.benchmarks.bench import seconds
from tests.benchmarks.launch import Event, Run, RunFailedError, Told

# A worker's event ends a phase once the last rank has recorded it, the supervisor's event as it stands in its record.
BY_WORKERS = {
    "first_line": "store and fork",
    "imported": "imports",
    "group": "rendezvous",
    "set_up": "set-up",
    "barrier": "first step",
    "step": "first step",
}


@dataclass(frozen=True, slots=True)
class Phase:
    """Names one part of a recovery. Its times are seconds since the fault."""

    name: str
    began_s: float
    ended_s: float


def recovery(run: Run, recovered: str) -> list[Phase]:
    """Returns the phases between the fault and the last rank's `recovered`, without gaps.

    The launcher must have ended. Raises RunFailedError where an event is missing.
    """
    fault = run.await_events("fault", 1, limit_s=0.0)[0]
    cycle = run.await_recovery(recovered, limit_s=0.0)[0].cycle
    return phases(fault, cycle, run.events, run.told_by_supervisor(), recovered)


def phases(fault: Event, cycle: int, events: Sequence[Event], told: Sequence[Told], recovered: str) -> list[Phase]:
    """Returns the phases of one recovery, whose ranks are back in `cycle`. Raises RunFailedError."""
    after = [each for each in told if each.at_ns >= fault.at_ns]
    started_ns = _first("cycle_started", (each for each in after if each.cycle == cycle))
    ends = [
        ("notice", _first("worker_failed", after)),
        ("stop", max((each.at_ns for each in after if _is_stop(each, started_ns)), default=None)),
        ("decide", started_ns),
    ]
    for name, phase in BY_WORKERS.items():
        at_ns = max((each.at_ns for each in events if each.name == name and each.cycle == cycle), default=None)
        if at_ns is not None:
            ends.append((phase, at_ns))
        if name == recovered:
            break
    found: list[Phase] = []
    began_s = 0.0
    for name, at_ns in ends:
        if at_ns is None:
            raise RunFailedError(f'cannot draw the recovery: no event ends "{name}"')
        ended_s = max(began_s, seconds(fault.at_ns, at_ns))
        found.append(Phase(name, began_s, ended_s))
        began_s = ended_s
    return found


def middle(recoveries: Sequence[Sequence[Phase]]) -> Sequence[Phase]:
    """Returns the one that took the median time, so that what is drawn was one real run; empty if there is none."""
    ordered = sorted(recoveries, key=lambda each: each[-1].ended_s)
    return ordered[(len(ordered) - 1) // 2] if ordered else []


def _first(kind: str, told: Iterable[Told]) -> int | None:
    return min((each.at_ns for each in told if each.kind == kind), default=None)


def _is_stop(each: Told, before_ns: int | None) -> bool:
    return each.kind == "workers_stopped" and (before_ns is None or each.at_ns <= before_ns)
