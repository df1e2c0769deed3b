"""How is a job's life derived from its report and its events?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from supervisor.config.recorded_settings import SOURCE, VALUE
from supervisor.core.event_weights import ENDS, Weight, weight
from supervisor.core.facts import JobState
from supervisor.ports.reports import JobReport, RecordedEvent
from supervisor.report.timeline.checkpoint_interval import checkpoints_of
from supervisor.report.timeline.cycles import cycles_of
from supervisor.report.timeline.event_ordering import in_order
from supervisor.report.timeline.incidents import incidents_of
from supervisor.report.timeline.missing_history import MARKS_MAX, missing_history
from supervisor.report.timeline.phase_spans import course_of, with_phases
from supervisor.report.timeline.process_lifetimes import runs_of
from supervisor.report.timeline.timeline import Incident, Life, LongestSilence, Phase, Run, Setting

_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
STRAGGLER = "straggler_"  # the prefix of event kinds about slow ranks


def life_of(report: JobReport, events: Iterable[RecordedEvent], *, now_ns: int) -> Life:
    """Returns the job's life. The events may come in any order."""
    ordered = in_order(events)
    has_ended = report.state.has_ended
    first_ns = ordered[0].at_ns if ordered else report.submitted_at_ns
    began_ns = min(report.submitted_at_ns, first_ns) if report.submitted_at_ns else first_ns
    until_ns = _until_ns(report, ordered, now_ns)
    cycles = cycles_of(ordered)
    has_failed = report.state is JobState.FAILED
    incidents = incidents_of(ordered, cycles, until_ns=until_ns, has_failed=has_failed, has_ended=has_ended)
    course = course_of(cycles, incidents, began_ns=began_ns, until_ns=until_ns, has_ended=has_ended)
    marks = _marks(ordered, incidents)
    runs = runs_of(ordered, until_ns=until_ns, state=report.state)
    settings = _settings(ordered)
    return Life(
        job_id=report.job_id,
        state=report.state,
        reason=report.reason,
        command=report.command,
        began_ns=began_ns,
        until_ns=max(until_ns, began_ns),
        has_ended=has_ended,
        exit_code=report.exit_code,
        max_restarts=report.max_restarts,
        restarts_used=max([report.restarts_used, *(each.units_used or 0 for each in incidents)]),
        log_dir=report.log_dir,
        nodes=report.nodes,
        ranks=max((cycle.ranks for cycle in cycles), default=len(report.ranks)),
        course=course,
        cycles=cycles,
        runs=runs,
        incidents=with_phases(_with_nodes(incidents, runs), course, until_ns=until_ns),
        marks=marks[-MARKS_MAX:],
        stragglers=tuple(event for event in ordered if event.kind.startswith(STRAGGLER)),
        silence=longest_silence(ordered),
        checkpoints=checkpoints_of(
            ordered, cycles, incidents, running_s=sum(span.took_s for span in course if span.phase is Phase.RUNNING)
        ),
        settings=settings,
        gaps=tuple(missing_history(report, ordered, settings, marks=len(marks))),
    )


def _with_nodes(incidents: tuple[Incident, ...], runs: Sequence[Run]) -> tuple[Incident, ...]:
    """Names the nodes of culprits that ran on several."""
    wanted = {(each.cycle, rank) for each in incidents if len(each.culprits) > 1 for rank in each.culprits}
    homes = {(run.cycle, run.rank): run.node for run in runs if wanted and (run.cycle, run.rank) in wanted}
    told: list[Incident] = []
    for each in incidents:
        nodes = dict.fromkeys(homes[each.cycle, rank] for rank in each.culprits if (each.cycle, rank) in homes)
        told.append(msgspec.structs.replace(each, nodes=tuple(nodes)) if len(nodes) > 1 else each)
    return tuple(told)


def longest_silence(events: Iterable[RecordedEvent]) -> LongestSilence | None:
    found: list[LongestSilence] = []
    for event in events:
        told = dict(event.details)
        longest, limit = (_SECONDS.fullmatch(told.get(name, "")) for name in ("longest_s", "limit_s"))
        if event.kind == "main_threads_measured" and longest and limit:
            found.append(LongestSilence(float(longest[0]), float(limit[0]), event.rank, event.cycle))
    return max(found, key=lambda each: each.longest_s, default=None)


def _until_ns(report: JobReport, events: Sequence[RecordedEvent], now_ns: int) -> int:
    if not report.state.has_ended:
        return now_ns
    return report.ended_at_ns or (events[-1].at_ns if events else report.submitted_at_ns)


def _marks(events: Sequence[RecordedEvent], incidents: Sequence[Incident]) -> tuple[RecordedEvent, ...]:
    """Returns events that people should read besides the incidents."""
    told = {event.sequence for incident in incidents for event in incident.events}
    return tuple(
        event
        for event in events
        if event.sequence not in told
        and weight(event.kind) is not Weight.ROUTINE
        and event.kind not in ENDS
        and event.kind not in ("running_again", "script_seen")
        and not event.kind.startswith(STRAGGLER)
    )


def _settings(events: Sequence[RecordedEvent]) -> tuple[Setting, ...]:
    submitted = next((event for event in events if event.kind == "job_submitted" and event.details), None)
    details = dict(submitted.details) if submitted is not None else {}
    return tuple(
        Setting(key.removeprefix(VALUE), value, details.get(SOURCE + key.removeprefix(VALUE), ""))
        for key, value in details.items()
        if key.startswith(VALUE)
    )
