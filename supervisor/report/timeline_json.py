"""Which data does the page's own timeline draw, small enough for 8,000 ranks and many cycles?"""

from __future__ import annotations

import json

from supervisor.report import formatting
from supervisor.report.phases import LOOKS, TROUBLES
from supervisor.report.timeline.timeline import Life, Phase, Run, RunEnd

_ENDS = {RunEnd.RUNS: "r", RunEnd.EXITED: "e", RunEnd.FAILED: "f", RunEnd.STOPPED: "s", RunEnd.LOST: "l"}
_CAUSE_MAX = 160
_JUST_ALIVE = (Phase.WAITING, Phase.MEETING, Phase.ENDING)  # A process alive then is drawn as running.


def timeline_json(life: Life) -> str:
    """Returns JSON with times in milliseconds from the beginning. Safe inside an HTML script element."""
    began_ns = life.began_ns

    def ms(at_ns: int) -> float:
        return round((at_ns - began_ns) / 1e6, 1)

    names = list(dict.fromkeys(run.node for run in life.runs))
    places = {name: place for place, name in enumerate(names)}
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in life.runs:
        groups.setdefault((run.node, run.cycle), []).append(run)
    until_ms = ms(life.until_ns)
    body = {
        "length": until_ms,
        "course": [
            [LOOKS[span.phase], ms(span.from_ns), ms(span.to_ns), span.phase in _JUST_ALIVE] for span in life.course
        ],
        "nodes": [formatting.plain(name) for name in names],
        "runs": [
            [
                places[node],
                cycle,
                [run.rank for run in runs],
                [ms(run.started_ns) for run in runs],
                [ms(run.ended_ns) if run.ended_ns is not None else until_ms for run in runs],
                "".join(_ENDS[run.end] for run in runs),
            ]
            for (node, cycle), runs in groups.items()
        ],
        "incidents": [
            {
                "number": each.number,
                "from": ms(each.began_ns),
                "at": ms(each.noticed_ns),
                "to": ms(each.until_ns) if each.until_ns is not None else until_ms,
                "cycle": each.cycle,
                "kind": TROUBLES[each.trouble],
                "ranks": list(each.culprits),
                "node": formatting.plain(each.node),
                "cause": _clipped(formatting.plain(each.cause)),
            }
            for each in life.incidents
        ],
    }
    return script_safe(json.dumps(body, separators=(",", ":")))


def script_safe(text: str) -> str:
    """Returns the ASCII JSON changed so that it can't end a script element or open a comment in it."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _clipped(text: str) -> str:
    return text if len(text) <= _CAUSE_MAX else f"{text[: _CAUSE_MAX - 1]}…"
