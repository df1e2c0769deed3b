"""How does a report look on a terminal?"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from supervisor.report import formatting, summary
from supervisor.report.phases import NAMES, OUTCOMES, SHORT, TROUBLES
from supervisor.report.timeline.timeline import Incident, LastWords, Life

INCIDENTS_MAX = 20
LINES_MAX = 4
BAR = 20
NARROW = 28  # columns in which a sentence is still readable
_INDENT = "     "


def text_of(life: Life, *, width: int | None = None) -> str:
    """Returns the report as text. `width` None: no terminal, so lines are not folded."""
    return "".join(_folded(line, width) for line in _lines(life))


def _folded(line: str, width: int | None) -> str:
    """Folds sentences at words, with the indent of their first line."""
    if width is None or len(line) <= width:
        return f"{line}\n"
    indent = " " * (len(line) - len(line.lstrip()))
    room = max(width, len(indent) + NARROW)
    return "\n".join(textwrap.wrap(line, room, subsequent_indent=f"{indent}  ", break_on_hyphens=False)) + "\n"


def _lines(life: Life) -> Iterator[str]:
    yield f"job {formatting.plain(life.job_id)} {summary.headline(life)}"
    if life.reason:
        yield f"reason: {formatting.plain(life.reason)}"
    yield ""
    for name, value, meaning in summary.figures(life):
        yield f"  {name:<15} {value:>9}  {meaning}"
    yield ""
    yield "where the time went:"
    rows = summary.spent(life)
    for phase, took_s, share in rows:
        bar = "█" * max(1, round(share * BAR))
        yield f"  {formatting.percent(share):>7}  {formatting.duration(took_s):>12}  {NAMES[phase]:<42} {bar}"
    shown = life.incidents[-INCIDENTS_MAX:]
    if shown:
        yield ""
        left = len(life.incidents) - len(shown)
        yield f"incidents, the newest {len(shown)} of {len(life.incidents)}:" if left else "incidents:"
        for incident in shown:
            yield from _incident(incident, life)
    for event in life.stragglers[-LINES_MAX:]:
        yield f"straggler: {formatting.plain(event.reason)}"
    for gap in life.gaps:
        yield f"not known: {formatting.plain(gap)}"


def _incident(incident: Incident, life: Life) -> Iterator[str]:
    cost = formatting.duration(incident.cost_s(life.until_ns))
    at = formatting.after(incident.noticed_ns, life.began_ns)
    inside = f", iteration {incident.iteration}" if incident.iteration else ""
    head = f"{TROUBLES[incident.trouble]} at {at} in cycle {incident.cycle}{inside}, cost {cost}"
    yield f"{incident.number:>3}. {head}: {OUTCOMES[incident.outcome]}"
    yield f"{_INDENT}{formatting.plain(incident.cause)}"
    culprit = summary.who(incident)
    if culprit:
        yield f"{_INDENT}culprit: {formatting.plain(culprit)}"
    if incident.phases:
        phases = ", ".join(f"{SHORT[span.phase]} {formatting.duration(span.took_s)}" for span in incident.phases)
        yield f"{_INDENT}phases: {phases}"
    if incident.script:
        yield f"{_INDENT}script: {formatting.plain(incident.script)}"
    for said in incident.last_words[:1]:
        yield from _last_words(said)


def _last_words(said: LastWords) -> Iterator[str]:
    if said.lines:
        yield f"{_INDENT}last lines of rank {said.rank}:"
        for line in said.lines[-LINES_MAX:]:
            yield f"{_INDENT}  {formatting.plain(line)}"
    elif said.note:
        yield f"{_INDENT}last lines of rank {said.rank}: {formatting.plain(said.note)}"
