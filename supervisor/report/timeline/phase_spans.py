"""What was the job as a whole doing at each moment of its life, and which phases did each incident go through?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from supervisor.report.timeline.timeline import Cycle, Incident, Outcome, Phase, Span

_INSIDE = (Outcome.INSIDE, Outcome.TOLERATED)


def course_of(
    cycles: Sequence[Cycle], incidents: Sequence[Incident], *, began_ns: int, until_ns: int, has_ended: bool
) -> tuple[Span, ...]:
    """Returns the course from `began_ns` to `until_ns` without gaps; adjacent spans of one phase are merged."""
    writer = _Writer(began_ns, until_ns)
    for cycle, after in zip(cycles, [*cycles[1:], None], strict=False):
        writer.go_on(Phase.MEETING if cycle is not cycles[0] else Phase.WAITING, cycle.began_ns, cycle.number)
        own = [each for each in incidents if each.cycle == cycle.number]
        _write_cycle(writer, cycle, own, is_last=after is None)
    last = cycles[-1].number if cycles else 0
    if not cycles:
        writer.go_on(Phase.WAITING, until_ns, 0)
    elif has_ended and cycles[-1].stopping_ns is None and not incidents:
        writer.go_on(Phase.RUNNING, until_ns, last)
    writer.go_on(Phase.ENDING if has_ended else writer.phase, until_ns, last)
    return tuple(writer.spans)


def _write_cycle(writer: _Writer, cycle: Cycle, incidents: Sequence[Incident], *, is_last: bool) -> None:
    number = cycle.number
    end = next((each for each in incidents if each.outcome not in _INSIDE), None)
    stopping_ns = cycle.stopping_ns if cycle.stopping_ns is not None else writer.until_ns
    ends_ns = stopping_ns if end is None else min(end.noticed_ns, stopping_ns)
    started_ns = cycle.started_ns if cycle.started_ns is not None else ends_ns
    writer.go_on(Phase.STARTING, min(started_ns, ends_ns), number)
    for each in incidents:
        if each.outcome is Outcome.INSIDE:
            writer.go_on(Phase.RUNNING, each.began_ns, number)
            writer.go_on(Phase.UNNOTICED, each.noticed_ns, number)
            writer.go_on(Phase.INTERRUPTED, each.until_ns if each.until_ns is not None else ends_ns, number)
    if end is not None:
        writer.go_on(Phase.RUNNING, min(end.began_ns, ends_ns), number)
        writer.go_on(Phase.UNNOTICED, ends_ns, number)
        writer.go_on(Phase.DECIDING, stopping_ns, number)
    else:
        writer.go_on(Phase.RUNNING, ends_ns, number)
    if cycle.stopping_ns is not None:
        stops = Phase.ENDING if end is None and is_last else Phase.STOPPING
        writer.go_on(stops, cycle.stopped_ns if cycle.stopped_ns is not None else writer.until_ns, number)


class _Writer:
    """Writes the spans in order; a moment in the past adds nothing."""

    def __init__(self, began_ns: int, until_ns: int) -> None:
        self.until_ns = max(until_ns, began_ns)
        self.spans: list[Span] = []
        self.phase = Phase.WAITING
        self._at_ns = began_ns

    def go_on(self, phase: Phase, to_ns: int, cycle: int) -> None:
        """Adds `phase` from the end of the last span to `to_ns`."""
        to_ns = min(to_ns, self.until_ns)
        self.phase = phase
        if to_ns <= self._at_ns:
            return
        last = self.spans[-1] if self.spans else None
        if last is not None and (last.phase, last.cycle) == (phase, cycle):
            self.spans[-1] = msgspec.structs.replace(last, to_ns=to_ns)
        else:
            self.spans.append(Span(phase, self._at_ns, to_ns, cycle))
        self._at_ns = to_ns


def with_phases(incidents: Sequence[Incident], course: Sequence[Span], *, until_ns: int) -> tuple[Incident, ...]:
    """Returns each incident with its part of the course."""
    return tuple(
        msgspec.structs.replace(each, phases=tuple(_between(course, each.began_ns, each.until_ns or until_ns)))
        if each.outcome is not Outcome.TOLERATED
        else each
        for each in incidents
    )


def _between(course: Sequence[Span], from_ns: int, to_ns: int) -> Iterator[Span]:
    for span in course:
        if span.to_ns > from_ns and span.from_ns < to_ns and span.phase not in (Phase.RUNNING, Phase.WAITING):
            yield msgspec.structs.replace(span, from_ns=max(span.from_ns, from_ns), to_ns=min(span.to_ns, to_ns))
