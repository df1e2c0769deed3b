"""Which remark says that a report is incomplete, and where more is recorded?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from supervisor.ports.reports import JobReport, RecordedEvent
from supervisor.report.timeline.timeline import Setting

MARKS_MAX = 2_000  # events shown besides the incidents


def missing_history(
    report: JobReport, events: Sequence[RecordedEvent], settings: Iterable[Setting], *, marks: int
) -> Iterable[str]:
    """Yields a sentence for each kind of gap. `marks`: how many events there are besides the incidents."""
    yield from _gaps(report, events, marks)
    yield from _other_nodes(report, settings)


def _other_nodes(report: JobReport, settings: Iterable[Setting]) -> Iterable[str]:
    """Yields a note if other nodes know more: the node that led has recorded everything, the others their own parts."""
    most = next((each.value.rpartition(":")[2] for each in settings if each.name == "nnodes"), "1")
    if most.isdigit() and int(most) > 1 and len(report.nodes) == 1 and not report.nodes[0].log_dir:
        yield (
            f"this is what {report.nodes[0].name} has recorded: its own part, and perhaps that of nodes that led; "
            f"the last of these has recorded the whole: run holdfast report {report.job_id} there"
        )


def _gaps(report: JobReport, events: Sequence[RecordedEvent], marks: int) -> Iterable[str]:
    if not events:
        yield "no event of this job is recorded"
        return
    first = min(event.sequence for event in events)
    if first > 1:
        yield f"the first {first - 1} events are no longer recorded: what they reported is missing here"
    elif len({event.sequence for event in events}) < max(event.sequence for event in events):
        yield "some events are missing"
    if marks > MARKS_MAX:
        yield f"of {marks} other events, the newest {MARKS_MAX} are shown"
    seen = {event.node for event in events}
    silent = [node.name for node in report.nodes if node.name not in seen]
    if len(report.nodes) > 1 and silent:
        named = ", ".join(silent[:5]) + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
        yield f"no event of {named} is recorded here"
