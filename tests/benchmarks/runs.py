"""Which runs make up a report? Rows measured at other times stay until they are measured again.

A complete run takes two and a half hours on a quiet machine. A run of some rows can therefore join an existing report:
each row keeps the conditions of the run that measured it, and a run with no row left is dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.benchmarks.conditions import Conditions
from tests.benchmarks.rows import OURS, Group, Row, Statistic, Target, Unit, judge

SCHEMA = "holdfast.benchmarks/v2"


@dataclass(slots=True)
class Run:
    """One run: its rows and its conditions."""

    conditions: Conditions
    rows: list[Row] = field(default_factory=list[Row])


class _Row(msgspec.Struct):
    """A row in the file. `ratios` and `targets` are for the file's readers: they follow from the other fields."""

    key: str
    run: int  # index into the file's runs
    group: Group
    title: str
    unit: Unit
    statistic: Statistic
    samples: dict[str, list[float | None]]
    target: Target
    notes: list[str]
    picture: str = ""  # a file beside this one


class _File(msgspec.Struct):
    schema: str
    subjects: dict[str, str]
    runs: list[Conditions]
    rows: list[_Row]


def joined(before: Sequence[Run], run: Run) -> list[Run]:
    """Returns the runs of a report after `run`, whose rows replace those with the same keys."""
    keys = {row.key for row in run.rows}
    kept = [Run(each.conditions, [row for row in each.rows if row.key not in keys]) for each in before]
    return [each for each in (*kept, run) if each.rows]


def read(path: Path) -> tuple[list[Run], dict[str, str]]:
    """Returns the runs in a report's data file, oldest first, and the subjects' labels by key; none without a file.

    Raises ValueError if the file has another schema or other content.
    """
    if not path.is_file():
        return [], {}
    try:
        told = msgspec.json.decode(path.read_bytes(), type=_File)
    except msgspec.ValidationError as error:
        raise ValueError(f"cannot keep the rows of {path}: {error}; run without --keep") from error
    if told.schema != SCHEMA:
        raise ValueError(f"cannot keep the rows of {path}: schema {told.schema}, not {SCHEMA}; run without --keep")
    runs = [Run(conditions) for conditions in told.runs]
    for each in told.rows:
        picture = (path.parent / each.picture).read_text() if each.picture else ""
        row = Row(each.key, each.group, each.title, each.unit, each.target, each.statistic, each.samples, each.notes)
        row.picture = picture
        runs[each.run].rows.append(row)
    return runs, told.subjects


def picture_of(row: Row) -> str:
    """Returns the name of the row's picture, a file beside the report; "" if it has none."""
    return f"benchmarks-{row.key.replace('_', '-')}.svg" if row.picture else ""


def raw(runs: Sequence[Run], labels: Mapping[str, str]) -> dict[str, Any]:
    """Returns all samples and the figures derived from them, as plain data."""
    return {
        "schema": SCHEMA,
        "subjects": dict(labels),
        "runs": [dataclasses.asdict(run.conditions) for run in runs],
        "rows": [_plain(row, number, labels) for number, run in enumerate(runs) for row in run.rows],
    }


def _plain(row: Row, run: int, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "key": row.key,
        "run": run,
        "group": row.group.value,
        "title": row.title,
        "unit": row.unit.value,
        "statistic": row.statistic.value,
        "samples": row.samples,
        "ratios": {peer: row.ratios_to(peer) for peer in labels if peer != OURS and row.ratios_to(peer)},
        "target": dataclasses.asdict(row.target),
        "targets": [dataclasses.asdict(finding) for finding in judge(row, labels)],
        "notes": row.notes,
        "picture": picture_of(row),
    }
