"""How is one incident shown on the page: its cost, its culprit, where the ranks were, what was printed?"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.report import summary, words
from supervisor.report.parts import details, element, key, lines, section, table, text
from supervisor.report.phases import LOOKS, NAMES, OUTCOMES, TROUBLES
from supervisor.report.timeline.timeline import Incident, LastWords, Life, Outcome

OPEN_MAX = 3  # incidents that are shown open; if there are more, the most costly ones
STACKS_OPEN_MAX = 3  # groups of stacks that are shown open; the unusual ones come first
LISTED_MAX = 500  # incidents shown with all details
EVENTS_MAX = 30


def incidents_part(life: Life) -> str:
    if not life.incidents:
        return section("incidents", "Incidents", "<p>No fault and no restart is recorded.</p>")
    costly = sorted(life.incidents, key=lambda each: -each.cost_s(life.until_ns))
    opened = {each.number for each in costly[:OPEN_MAX]}
    shown = life.incidents if len(life.incidents) <= LISTED_MAX else tuple(sorted(costly[:LISTED_MAX], key=_number))
    told = ""
    if len(shown) < len(life.incidents):
        told = f"<p>The {len(shown)} of {len(life.incidents):,} incidents that cost most are described below.</p>"
    overview = _overview(life) if len(life.incidents) > 1 else ""
    articles = "".join(_incident(each, life, is_open=each.number in opened) for each in shown)
    return section("incidents", "Incidents", overview + told + articles)


def _number(incident: Incident) -> int:
    return incident.number


def _overview(life: Life) -> str:
    rows = [
        (
            f'<a href="#incident-{each.number}">{each.number}</a>',
            words.after(each.noticed_ns, life.began_ns),
            text(TROUBLES[each.trouble]),
            text(summary.who(each)) or "-",
            words.duration(each.cost_s(life.until_ns)),
            text(OUTCOMES[each.outcome]),
        )
        for each in life.incidents[:2000]
    ]
    return table(
        "All incidents", ("Number", "Noticed", "Kind", "Culprit", "Cost", "Outcome"), rows, number_columns=(1, 4)
    )


def _incident(incident: Incident, life: Life, *, is_open: bool) -> str:
    cost = words.duration(incident.cost_s(life.until_ns))
    kind = text(TROUBLES[incident.trouble])
    head = (
        f'<span class="pin">{incident.number}</span> <span class="cause">{text(incident.cause)}</span> '
        f'<span class="tags"><span class="tag">{kind}</span> <span class="tag cost">{cost}</span></span>'
    )
    inside = "".join(_facts(incident, life)) + _phases(incident) + _stacks(incident) + _words(incident)
    return details(head, f'<div class="incident">{inside}{_events(incident, life)}</div>', is_open=is_open,
                   name=f"incident-{incident.number}")  # fmt: skip


def _facts(incident: Incident, life: Life) -> Iterator[str]:
    began = words.moment(incident.noticed_ns, milliseconds=True)
    culprit = summary.who(incident)
    where = f"cycle {incident.cycle}" + (f", iteration {incident.iteration}" if incident.iteration else "")
    budget = "nothing" if incident.units_used is None else f"{incident.units_used} of {life.max_restarts} used then"
    facts = [
        (
            "Noticed",
            f"{text(began)}, {words.after(incident.noticed_ns, life.began_ns)} after the beginning, in {where}",
        ),
        ("Culprit", text(culprit) or "nobody is named"),
        ("Also failed", text(words.ranks(incident.followers))),
        ("Outcome", text(OUTCOMES[incident.outcome])),
        ("Decision", text(incident.decision)),
        ("Script", text(incident.script)),
        ("Restart budget", text(budget) if incident.outcome is not Outcome.TOLERATED else ""),
    ]
    yield '<dl class="facts">'
    yield from (f"<div><dt>{name}</dt><dd>{told}</dd></div>" for name, told in facts if told)
    yield "</dl>"
    yield (
        f'<p class="controls-line"><button type="button" data-incident="{incident.number}">'
        f"Show incident {incident.number} in the timeline</button></p>"
    )


def _phases(incident: Incident) -> str:
    if not incident.phases:
        return ""
    whole_s = sum(span.took_s for span in incident.phases) or 1.0
    x, bars = 0.0, ""
    for span in incident.phases:
        width = span.took_s / whole_s * 1000
        bars += f'<rect class="{LOOKS[span.phase]}" x="{x:.1f}" y="0" width="{max(width, 2):.1f}" height="14"/>'
        x += width
    picture = f'<svg class="phases" viewBox="0 0 1000 14" preserveAspectRatio="none" aria-hidden="true">{bars}</svg>'
    rows = [
        (key(LOOKS[span.phase]) + text(NAMES[span.phase]), words.duration(span.took_s),
         words.percent(span.took_s / whole_s))
        for span in incident.phases
    ]  # fmt: skip
    caption = f"Phases of incident {incident.number}"
    return f"<h3>What it cost</h3>{picture}" + table(caption, ("Phase", "Took", "Share"), rows, number_columns=(1, 2))


def _stacks(incident: Incident) -> str:
    if not incident.stacks:
        return f"<p>Stacks: {text(incident.stacks_note)}</p>" if incident.stacks_note else ""
    parts: list[str] = []
    for at, group in enumerate(incident.stacks):
        frames = group.stack.split("\n")
        number = group.ranks.count(",") + 1
        named = group.ranks if number <= 12 else f"{', '.join(group.ranks.split(', ')[:12])} and {number - 12} more"
        who = f"rank{'' if number == 1 else 's'} {text(named)}"
        head = f"<strong>{who}</strong> in <code>{text(frames[-1])}</code>"
        body = f"<pre>{lines(frames)}</pre>"
        parts.append(details(head, body, is_open=(at < STACKS_OPEN_MAX and len(incident.stacks) <= 8) or at == 0))
    note = f'<p class="quiet">The odd ones first, the innermost frame last; {text(incident.stacks_note)}</p>'
    return f"<h3>Where the ranks stood</h3>{note}{''.join(parts)}"


def _words(incident: Incident) -> str:
    told = "".join(_last_words(each) for each in incident.last_words)
    return f"<h3>Last lines of output</h3>{told}" if told else ""


def _last_words(said: LastWords) -> str:
    body = f"<pre>{lines(said.lines)}</pre>" if said.lines else ""
    note = f'<p class="quiet">{text(said.note)}</p>' if said.note else ""
    return f"<h4>rank {said.rank}</h4>{note}{body}"


def _events(incident: Incident, life: Life) -> str:
    shown = incident.events[:EVENTS_MAX]
    rows = [
        (words.after(event.at_ns, life.began_ns), text(event.node), "" if event.rank is None else str(event.rank),
         element("code", text(event.kind), class_="kind"), text(event.reason))
        for event in shown
    ]  # fmt: skip
    left = len(incident.events) - len(shown)
    more = f"<p>{left} more: holdfast events {text(life.job_id)}</p>" if left else ""
    caption = f"Events of incident {incident.number}"
    return details(
        f"{caption} ({len(incident.events)})", table(caption, ("At", "Node", "Rank", "What", "Why"), rows) + more
    )
