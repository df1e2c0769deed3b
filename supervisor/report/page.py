"""How does the page of one job look? One HTML file that needs no network, no server and, to be read, no script."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import resources

from supervisor.core.event_weights import Weight, weight
from supervisor.ports.reports import RecordedEvent
from supervisor.report import summary, words
from supervisor.report.incident_part import incidents_part
from supervisor.report.lane_data import timeline_json
from supervisor.report.lanes import by_node, troubles_of
from supervisor.report.parts import details, element, key, section, table, text
from supervisor.report.phases import LEGEND, LOOKS, NAMES
from supervisor.report.svg import STYLE, picture_of
from supervisor.report.timeline.timeline import Life

SCRIPTS = ("lanes.js", "timeline.js", "page.js")
NODES_SHOWN_MAX = 50  # those with the most failures come first
CYCLES_SHOWN_MAX = 500
_LOUD = {Weight.FAULT: "kind fault", Weight.LOSS: "kind fault"}


def page_of(life: Life, *, made_at_ns: int, version: str) -> str:
    style, script = _style(), _script()
    job = text(life.job_id)
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy()}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n',
            f'<title>{job}: report of its life</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n',
            "</head>\n<body>\n",
            '<a class="skip" href="#main">Skip to the report</a>\n',
            _header(life),
            '<main id="main">\n',
            *(f"{part}\n" for part in _parts(life) if part),
            "</main>\n",
            _footer(life, made_at_ns, version),
            f'<script type="application/json" id="life">{timeline_json(life)}</script>\n',
            f"<script>{script}</script>\n</body>\n</html>\n",
        )
    )


@cache
def policy() -> str:
    """Returns the page's content security policy, the same for all jobs."""
    return (
        f"default-src 'none'; style-src '{_digest(_style())}'; script-src '{_digest(_script())}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _style() -> str:
    return STYLE + _file("report.css")


def _script() -> str:
    return "".join(_file(name) for name in SCRIPTS)


@cache
def _file(name: str) -> str:
    return (resources.files("supervisor.report") / "page" / name).read_text("utf-8")


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _parts(life: Life) -> Iterator[str]:
    yield _timeline(life)
    yield _time_part(life)
    yield incidents_part(life)
    yield _stragglers(life)
    yield _cycles(life)
    yield _nodes(life)
    yield _events(life)
    yield _settings(life)
    yield section("gaps", "Not known", "".join(f"<p>{text(gap)}</p>" for gap in life.gaps))


def _header(life: Life) -> str:
    state = life.state.value
    command = text(" ".join(life.command))
    figures = "".join(
        f'<div><dt>{text(name)}</dt><dd><span class="value">{text(value)}</span>'
        f'<span class="quiet">{text(meaning)}</span></dd></div>'
        for name, value, meaning in summary.figures(life)
    )
    facts = [
        f"began {text(words.moment(life.began_ns))}",
        f"ended {text(words.moment(life.until_ns))}" if life.has_ended else "still runs; the report shows it so far",
        f"exit code {life.exit_code}" if life.exit_code is not None else "",
    ]
    reason = f"<p>{text(life.reason)}</p>" if life.reason else ""
    return (
        f'<header><p class="quiet">Report on the life of a job</p><h1>{text(life.job_id)} '
        f'<span class="state {state}">{state}</span></h1>'
        f'<p class="headline">The job {text(summary.headline(life))}.</p>'
        f'{reason}<p class="quiet">{"; ".join(fact for fact in facts if fact)}</p>'
        f'<p class="quiet"><code>{command}</code></p><dl class="figures">{figures}</dl></header>\n'
    )


def _timeline(life: Life) -> str:
    legend = "".join(f"<li>{key(look)}{text(told)}</li>" for look, told in LEGEND)
    hint = (
        "Keys in the timeline: <kbd>←</kbd> <kbd>→</kbd> move in time, <kbd>+</kbd> <kbd>&minus;</kbd> zoom, "
        "<kbd>0</kbd> shows all, <kbd>↑</kbd> <kbd>↓</kbd> choose a lane, <kbd>Enter</kbd> opens a node."
    )
    return section(
        "timeline",
        "Timeline",
        f'<div id="explorer" hidden><form class="controls" role="search" id="controls">'
        '<label for="find">Find a rank or a node</label><input id="find" type="search" autocomplete="off" '
        'placeholder="rank 12, node7"><label class="check"><input type="checkbox" id="troubled"> only with faults'
        '</label><span class="buttons"><button type="button" id="earlier" aria-label="Earlier">←</button>'
        '<button type="button" id="later" aria-label="Later">→</button>'
        '<button type="button" id="closer" aria-label="Zoom in">+</button>'
        '<button type="button" id="wider" aria-label="Zoom out">&minus;</button>'
        '<button type="button" id="whole">Show all</button></span></form>'
        f'<ul class="legend">{legend}</ul>'
        '<div id="pins"></div><div id="lanes" tabindex="0" role="group" aria-describedby="keys" '
        'aria-label="Lanes of nodes and ranks over time"></div><div id="axis" aria-hidden="true"></div>'
        f'<p id="chosen" role="status" aria-live="polite"></p><p id="keys" class="quiet">{hint}</p></div>'
        f'<div id="static" class="scroll" tabindex="0" role="region" aria-label="Picture of the timeline">'
        f"{picture_of(life, is_own_file=False)}</div>",
    )


def _time_part(life: Life) -> str:
    rows = [
        (key(LOOKS[phase]) + text(NAMES[phase]), words.duration(took_s), words.percent(share))
        for phase, took_s, share in summary.spent(life)
    ]
    note = f'<p class="quiet">Measured by the events of Holdfast: {text(summary.BASIS)}.</p>'
    return section(
        "time", "Where the time went",
        table("What the job's time was spent on", ("Phase", "Time", "Share"), rows, number_columns=(1, 2)) + note,
    )  # fmt: skip


def _stragglers(life: Life) -> str:
    rows = [_straggler(each, life) for each in life.stragglers[-CYCLES_SHOWN_MAX:]]
    if not rows:
        return ""
    return section("stragglers", "Stragglers", table("Slow ranks", ("At", "Ranks", "Node", "What", "Why"), rows))


def _straggler(event: RecordedEvent, life: Life) -> tuple[str, ...]:
    """Names the slow ranks and their node; the event itself is of the node that has compared them."""
    details = dict(event.details)
    ranks = details.get("ranks", "" if event.rank is None else str(event.rank))
    node = details.get("straggler_node", event.node)
    kind = element("code", text(event.kind), class_="kind")
    return words.after(event.at_ns, life.began_ns), text(ranks), text(node), kind, text(event.reason)


def _cycles(life: Life) -> str:
    if not life.cycles:
        return ""
    by_cycle = {each.cycle: each for each in life.incidents if each.outcome.value in ("restarted", "ended the job")}
    rows: list[tuple[str, ...]] = []
    for cycle in life.cycles[-CYCLES_SHOWN_MAX:]:
        began_ns, stopping_ns = cycle.started_ns, cycle.stopping_ns
        ran = "-"
        if began_ns is not None:
            until_ns = stopping_ns if stopping_ns is not None else life.until_ns
            ran = words.duration(max(0, until_ns - began_ns) / 1e9)
        ended = by_cycle.get(cycle.number)
        why = f'<a href="#incident-{ended.number}">{text(ended.cause)}</a>' if ended is not None else "-"
        used = "" if ended is None or ended.units_used is None else f"{ended.units_used} of {life.max_restarts}"
        rows.append(
            (str(cycle.number), words.after(cycle.began_ns, life.began_ns), ran, f"{cycle.ranks:,}",
             text(words.nodes(cycle.nodes)), why, used)
        )  # fmt: skip
    heads = ("Cycle", "Began", "Ran", "Ranks", "Nodes", "Ended by", "Restarts used then")
    budget = (
        f'<p class="budget"><label for="used">Restarts used: {life.restarts_used} of {life.max_restarts}</label> '
        f'<meter id="used" min="0" max="{max(life.max_restarts, 1)}" value="{life.restarts_used}"></meter></p>'
    )
    return section("cycles", "Restarts and the budget", budget + table("Cycles", heads, rows, number_columns=(1, 2, 3)))


def _nodes(life: Life) -> str:
    runs = by_node(life)
    troubles = troubles_of(life)
    known = {each.name: each for each in life.nodes}
    if len(runs.keys() | known.keys()) < 2:
        return ""
    names = sorted(runs.keys() | known.keys(), key=lambda name: (-troubles[name], name))
    rows = [
        (
            text(name),
            text(known[name].state if name in known else "-"),
            text(words.ranks([run.rank for run in runs.get(name, [])])) or "-",
            str(troubles[name]),
            text(known[name].reason if name in known else ""),
        )
        for name in names
    ]
    heads = ("Node", "State", "Ranks", "Faults", "Why")
    told = table("Nodes, those with the most faults first", heads, rows[:NODES_SHOWN_MAX], number_columns=(3,))
    if rest := rows[NODES_SHOWN_MAX:]:
        told += details(f"{len(rest):,} more nodes", table("More nodes", heads, rest, number_columns=(3,)))
    return section("nodes", "Nodes", told)


def _events(life: Life) -> str:
    """Returns the events that are news besides the incidents."""
    if not life.marks:
        return ""
    rows = [
        (words.after(each.at_ns, life.began_ns), text(each.node), "" if each.rank is None else str(each.rank),
         element("code", text(each.kind), class_=_LOUD.get(weight(each.kind), "kind")), text(each.reason))
        for each in life.marks
    ]  # fmt: skip
    kinds = Counter(each.kind for each in life.marks)
    told = ", ".join(f"{number} x {text(kind)}" for kind, number in kinds.most_common(8))
    inside = table("Events beside the incidents", ("At", "Node", "Rank", "What", "Why"), rows)
    return section("events", "Other events", details(f"{len(rows):,}: {told}", inside, is_open=len(rows) <= 20))


def _settings(life: Life) -> str:
    if not life.settings:
        return ""
    rows = [_setting(each.name, each.value, each.source) for each in life.settings]
    told = table("Settings that were given", ("Setting", "Value", "From"), rows)
    note = '<p class="quiet">All others had the defaults of the version of Holdfast that ran the job.</p>'
    return section("settings", "Configuration", told + note)


def _setting(name: str, value: str, source: str) -> tuple[str, str, str]:
    return element("code", text(name)), element("code", text(value)), text(source)


def _footer(life: Life, made_at_ns: int, version: str) -> str:
    logs = f" Output and logs were in <code>{text(life.log_dir)}</code>." if life.log_dir else ""
    return (
        f'<footer class="quiet"><p>Written by Holdfast {text(version)} at {text(words.moment(made_at_ns))} from the '
        f"events of the job.{logs} It holds no value of an environment variable and no token.</p></footer>\n"
    )
