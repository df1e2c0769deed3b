"""What can a program read about a job's life? Keys may be added, but never renamed."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from supervisor.ports.reports import RecordedEvent
from supervisor.report import summary
from supervisor.report.phases import TROUBLES
from supervisor.report.timeline.timeline import Incident, Life, Run, Span

SCHEMA = "holdfast.report/v1"


def document_of(life: Life) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "job_id": life.job_id,
        "state": life.state.value,
        "reason": life.reason,
        "command": list(life.command),
        "began_at": _at(life.began_ns),
        "until": _at(life.until_ns),
        "has_ended": life.has_ended,
        "exit_code": life.exit_code,
        "ranks": life.ranks,
        "nodes": [{"name": each.name, "state": each.state, "reason": each.reason} for each in life.nodes],
        "max_restarts": life.max_restarts,
        "restarts_used": life.restarts_used,
        "running_share": life.running_share,
        "lost_s": sum(each.cost_s(life.until_ns) for each in life.incidents),
        "spent_s": {phase.value: took_s for phase, took_s, _ in summary.spent(life)},
        "course": [_span(span) for span in life.course],
        "cycles": [
            {
                "cycle": each.number,
                "began_at": _at(each.began_ns),
                "started_at": _at(each.started_ns),
                "stopping_at": _at(each.stopping_ns),
                "stopped_at": _at(each.stopped_ns),
                "nodes": list(each.nodes),
                "ranks": each.ranks,
                "reason": each.reason,
            }
            for each in life.cycles
        ],
        "incidents": [_incident(each, life) for each in life.incidents],
        "runs": [_run(each) for each in life.runs],
        "stragglers": [_event(each) for each in life.stragglers],
        "longest_silence": None if life.silence is None else msgspec.structs.asdict(life.silence),
        "checkpoints": msgspec.structs.asdict(life.checkpoints[0]) if life.checkpoints else None,
        "more_checkpoints": [msgspec.structs.asdict(each) for each in life.checkpoints[1:]],
        "marks": [_event(each) for each in life.marks],
        "settings": [{"name": each.name, "value": each.value, "source": each.source} for each in life.settings],
        "not_known": list(life.gaps),
    }


def _incident(each: Incident, life: Life) -> dict[str, object]:
    return {
        "number": each.number,
        "kind": TROUBLES[each.trouble],
        "outcome": each.outcome.value,
        "began_at": _at(each.began_ns),
        "noticed_at": _at(each.noticed_ns),
        "until": _at(each.until_ns),
        "cost_s": each.cost_s(life.until_ns),
        "cycle": each.cycle,
        "iteration": each.iteration,
        "cause": each.cause,
        "culprits": list(each.culprits),
        "node": each.node,
        "culprit_nodes": list(each.nodes),
        "decision": each.decision,
        "script": each.script,
        "also_failed": list(each.followers),
        "restarts_used": each.units_used,
        "phases": [_span(span) for span in each.phases],
        "stacks": [{"ranks": group.ranks, "stack": group.stack} for group in each.stacks],
        "last_words": [{"rank": said.rank, "lines": list(said.lines), "note": said.note} for said in each.last_words],
        "events": [event.sequence for event in each.events],
    }


def _run(run: Run) -> dict[str, object]:
    return {
        "rank": run.rank,
        "node": run.node,
        "cycle": run.cycle,
        "started_at": _at(run.started_ns),
        "ended_at": _at(run.ended_ns),
        "end": run.end.value,
        "reason": run.reason,
    }


def _span(span: Span) -> dict[str, object]:
    return {
        "phase": span.phase.value,
        "from": _at(span.from_ns),
        "to": _at(span.to_ns),
        "took_s": span.took_s,
        "cycle": span.cycle,
    }


def _event(event: RecordedEvent) -> dict[str, object]:
    return {
        "at": _at(event.at_ns),
        "kind": event.kind,
        "reason": event.reason,
        "node": event.node,
        "rank": event.rank,
        "cycle": event.cycle,
        "details": dict(event.details),
    }


def _at(at_ns: int | None) -> str | None:
    """Returns ISO 8601 in UTC, to the microsecond."""
    if at_ns is None:
        return None
    moment = datetime.fromtimestamp(at_ns // 10**9, UTC).replace(microsecond=at_ns % 10**9 // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
