"""Writes docs/reference/events.md from the catalogue in supervisor/core/event_kinds.py."""

from pathlib import Path

from supervisor.core.event_kinds import THEMES, Weight

SHOWN = {
    Weight.ROUTINE: "",
    Weight.NEWS: "news",
    Weight.FAULT: "fault",
    Weight.LOSS: "end",
}
HEAD = """\
# Events, and what to do about each

<!-- Written by docs/make_events.py. Do not edit: run `make docs`. -->

`holdfast events JOB` shows what happened to a job: the time, the cycle, the node, the rank, the kind of the event, and
a sentence that says why. This page explains the kinds. The third column marks the events that `holdfast run`, the
daemon's log and [notifications](operating.md#notifications-of-events) report at once: news, a fault, or the job's
end. All other events are only in the journal.
"""

lines = [HEAD]
for title, kinds in THEMES:
    lines += [f"## {title}", "", "| kind | meaning | reported | what to do |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {kind.meaning} | {SHOWN[kind.weight]} | {kind.remedy} |" for name, kind in kinds.items()]
    lines.append("")
place = Path(__file__).parent / "reference" / "events.md"
place.parent.mkdir(exist_ok=True)
place.write_text("\n".join(lines))
