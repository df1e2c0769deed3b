"""What do a job's checkpoints cost, what do its faults cost for want of more, and which interval would cost least?

The model and its optimum are those of J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", Future Generation Computer Systems 22 (2006), which refines J. W. Young (CACM 17, 1974): faults come at
random with a mean time M between them, a checkpoint stops training for a time d, and a fault loses what was done since
the last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import exp, expm1, sqrt

from supervisor.core.checkpoint_times import SECTIONS_MAX
from supervisor.ports.reports import RecordedEvent
from supervisor.report.timeline.timeline import Checkpoints, Cycle, Incident, Outcome, Trouble

_COUNT = re.compile(r"[0-9]{1,12}")
_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_BEGINS_AGAIN = (Outcome.RESTARTED, Outcome.INSIDE, Outcome.ENDED_JOB)


def checkpoints_of(
    events: Iterable[RecordedEvent], cycles: Sequence[Cycle], incidents: Iterable[Incident], *, running_s: float
) -> tuple[Checkpoints, ...]:
    """Returns what is known of the checkpoints of each section, those that took longest in total first."""
    faults = sum(loses_steps(each.trouble, each.outcome) for each in incidents)
    told = sorted(_told(events).items(), key=lambda each: -sum(total_s for _, _, total_s in _last(each[1])))
    found = (_of_section(name, reports, cycles, faults, running_s) for name, reports in told)
    return tuple(each for each in found if each is not None)[:SECTIONS_MAX]


def _of_section(
    section: str, told: _Told, cycles: Sequence[Cycle], faults: int, running_s: float
) -> Checkpoints | None:
    """Returns what is known of one section's checkpoints; None if the time between them is unknown."""
    last = _last(told)
    times = sum(times for _, times, _ in last)
    pause_s = sum(total_s for _, _, total_s in last) / times
    period_s = _period_s(told, cycles)
    if period_s is None:
        return None
    interval_s = max(period_s - pause_s, 0.0)
    if not faults or not pause_s or not interval_s or not running_s:
        return Checkpoints(section, times, pause_s, interval_s, faults)
    between_s = running_s / faults
    best_s = best_interval_s(pause_s, between_s)
    return Checkpoints(
        section, times, pause_s, interval_s, faults,
        between_faults_s=between_s, cost_share=cost_share(interval_s, pause_s, between_s),
        best_interval_s=best_s, best_cost_share=cost_share(best_s, pause_s, between_s),
    )  # fmt: skip


def loses_steps(trouble: Trouble, outcome: Outcome) -> bool:
    """Returns whether it was a fault after which the ranks began again from a checkpoint."""
    return outcome in _BEGINS_AGAIN and trouble is not Trouble.REQUESTED


def best_interval_s(pause_s: float, between_faults_s: float) -> float:
    """Returns the training between two checkpoints that loses least."""
    if pause_s >= 2 * between_faults_s:
        return between_faults_s
    ratio = pause_s / (2 * between_faults_s)
    return sqrt(2 * pause_s * between_faults_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - pause_s


def cost_share(interval_s: float, pause_s: float, between_faults_s: float) -> float:
    """Returns the share of the time that checkpoints and repeated steps take."""
    exponent = (interval_s + pause_s) / between_faults_s
    # the time for interval_s of training is M (e^x - 1); beyond e^700 a float would overflow
    return 1 - interval_s / between_faults_s * (exp(-exponent) if exponent > 700 else 1 / expm1(exponent))


_Told = list[tuple[RecordedEvent, int, float]]  # the event, times, total_s


def _told(events: Iterable[RecordedEvent]) -> dict[str, _Told]:
    """Returns what was reported, by section; the events are in order."""
    told: dict[str, _Told] = {}
    for event in events:
        if event.kind == "checkpoints_measured":
            details = dict(event.details)
            times, total_s = (details.get(name, "") for name in ("times", "total_s"))
            if _COUNT.fullmatch(times) and _SECONDS.fullmatch(total_s) and int(times):
                told.setdefault(details.get("section", ""), []).append((event, int(times), float(total_s)))
    return told


def _last(told: _Told) -> _Told:
    """Returns the last report of each cycle, which counts the whole cycle up to then."""
    return list({each[0].cycle: each for each in told}.values())


def _period_s(told: _Told, cycles: Sequence[Cycle]) -> float | None:
    """Returns the mean time from one checkpoint to the next, or else from the start of the ranks to the first."""
    of_cycle: dict[int, _Told] = {}
    for each in told:
        of_cycle.setdefault(each[0].cycle, []).append(each)
    spans = [
        ((last[0].at_ns - first[0].at_ns) / 1e9, last[1] - first[1])
        for first, last in ((each[0], each[-1]) for each in of_cycle.values())
        if last[1] > first[1]
    ]
    if not spans:
        started = {each.number: each.started_ns for each in cycles if each.started_ns is not None}
        spans = [
            ((each[0][0].at_ns - started[cycle]) / 1e9, each[0][1])
            for cycle, each in of_cycle.items()
            if cycle in started
        ]
    taken = sum(times for _, times in spans)
    return sum(took_s for took_s, _ in spans) / taken if taken else None
