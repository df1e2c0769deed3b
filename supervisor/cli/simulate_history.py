"""What does the report on a real job say about its nodes, its faults and its checkpoints?

Only what the report shows is taken; everything else keeps its default. Few faults say little: the rate of three faults
may be off by a factor of two.
"""

from __future__ import annotations

import msgspec

from supervisor.errors import InvalidRequestError
from supervisor.report.phases import TROUBLES
from supervisor.report.report_json import SCHEMA
from supervisor.report.timeline.checkpoint_interval import loses_steps
from supervisor.report.timeline.timeline import Outcome, Trouble

_TROUBLE_OF = {text: trouble for trouble, text in TROUBLES.items()}


class _Cycle(msgspec.Struct):
    nodes: list[str] = msgspec.field(default_factory=list[str])
    ranks: int = 0


class _Incident(msgspec.Struct):
    kind: str
    outcome: Outcome


class _Checkpoints(msgspec.Struct):
    pause_s: float
    interval_s: float


class _Report(msgspec.Struct):
    schema: str
    cycles: list[_Cycle]
    incidents: list[_Incident]
    spent_s: dict[str, float]
    max_restarts: int
    checkpoints: _Checkpoints | None = None


def fields_of(text: bytes, *, name: str) -> dict[str, int | float]:
    """Returns fields of a Scenario from the JSON that `holdfast report JOB -o json` writes.

    `name` is the file's, for errors. Raises InvalidRequestError if it is something else, or shows no cycle with nodes.
    """
    try:
        report = msgspec.json.decode(text, type=_Report)
    except msgspec.DecodeError as error:
        raise _refusal(name, f"it is not such a report ({error})") from error
    if report.schema != SCHEMA:
        raise _refusal(name, f"its schema is {report.schema!r}, not {SCHEMA!r}")
    last = next((cycle for cycle in reversed(report.cycles) if cycle.nodes and cycle.ranks), None)
    if last is None:
        raise _refusal(name, "its job has not started any rank")
    nodes = len(last.nodes)
    found: dict[str, int | float] = {
        "nodes": nodes,
        "ranks_per_node": max(last.ranks // nodes, 1),
        "max_restarts": report.max_restarts,
    }
    told = [(_TROUBLE_OF.get(each.kind, Trouble.OTHER), each.outcome) for each in report.incidents]
    faults = [trouble for trouble, outcome in told if loses_steps(trouble, outcome)]
    running_s = report.spent_s.get("running", 0.0)
    if faults and running_s > 0:
        found["mtbf_s"] = running_s * nodes / len(faults)
        found["lost_share"] = faults.count(Trouble.NODE_LOST) / len(faults)
        found["hang_share"] = faults.count(Trouble.HANG) / len(faults)
    if report.checkpoints is not None:
        found["checkpoint_interval_s"] = report.checkpoints.interval_s
        found["checkpoint_pause_s"] = report.checkpoints.pause_s
    return found


def _refusal(name: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"cannot take a job's history from {name}: {why}; write it by holdfast report JOB -o F.json"
    )
