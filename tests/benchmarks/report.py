"""How is a run of the bench reported? docs/benchmarks.md is for people; docs/benchmarks.json has every sample."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.benchmarks.conditions import Conditions
from tests.benchmarks.figures import Summary, percentile
from tests.benchmarks.headlines import headlines, shortfalls
from tests.benchmarks.rows import OURS, Finding, Group, Row, Statistic, Unit, judge, show
from tests.benchmarks.runs import Run, picture_of, raw

_HEAD = """# Benchmarks

How long do faults cost, and what does it cost to watch? `make bench` measures it on your machine and writes this page;
do not edit it. GPUs and networks between machines have not been measured. Figures in short are medians.
"""
_HOW = """## How and when it was measured

All figures of a row come from one run, with the same work and the subjects in turn (A B C A B C), so the ratios hold
even if the seconds do not. "Tuned" is torchrun or the reference with the intervals that let it restart soonest. The
reference is nvidia-resiliency-ext. A cell shows the median (lowest to highest; n runs) unless its row says p99 or max.
A ratio divides our figure by the peer's, so below 1 we are faster or cheaper; it shows the median (lowest to highest)
over pairs of adjacent runs. Every sample is in [benchmarks.json](benchmarks.json).
"""

_REFERENCE = (
    "The reference is measured in the newest version that pip installs. Its targets were set against newer source, "
    "which takes longer to restart; where a share of it is not met, compare the absolute figure too."
)


def write(folder: Path, runs: Sequence[Run], labels: Mapping[str, str]) -> tuple[Path, Path]:
    """Writes both files into `folder`, and makes it if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    text, data = folder / "benchmarks.md", folder / "benchmarks.json"
    text.write_text(markdown(runs, labels))
    for row in (row for run in runs for row in run.rows if row.picture):
        (folder / picture_of(row)).write_text(row.picture)
    data.write_text(json.dumps(raw(runs, labels), indent=1, ensure_ascii=False) + "\n")
    return text, data


def markdown(runs: Sequence[Run], labels: Mapping[str, str]) -> str:
    """Returns the whole page. If it has rows of several runs, a letter in each row names its run."""
    marks = [f" ({chr(ord('A') + number)})" if len(runs) > 1 else "" for number in range(len(runs))]
    rows = [row for run in runs for row in run.rows]
    parts = [_HEAD, headlines(rows), _HOW]
    parts.append(_conditions(runs[0].conditions, labels) if len(runs) == 1 else _all_conditions(runs, labels))
    parts.append(shortfalls(rows, labels))
    for group in Group:
        marked = [(row, mark) for run, mark in zip(runs, marks, strict=True) for row in run.rows if row.group is group]
        if marked:
            members = [row for row, _ in marked]
            parts.append(f"## {group.value}\n\n{_table(marked, labels)}\n")
            parts.append(_notes(members))
            parts += [f"![{row.title}]({picture_of(row)})\n" for row in members if row.picture]
    return "\n".join(part for part in parts if part)


def _all_conditions(runs: Sequence[Run], labels: Mapping[str, str]) -> str:
    """Returns what differs between the runs as a table, and the rest once."""
    lines = [
        "| run | when | commit | minutes | machine | versions | others on the machine | not measured |",
        "|---" * 8 + "|",
    ]
    for number, run in enumerate(runs):
        each = run.conditions
        others = each.others + ("" if each.is_quiet else ": **not quiet, read the ratios**")
        machine = (
            f"{each.processor}, {each.cpus} CPUs, {each.memory_gib:g} GiB, Linux {each.kernel}, Python {each.python}"
        )
        absent = ", ".join(labels.get(key, key) for key in each.absent) or "-"
        letter = chr(ord("A") + number)
        lines.append(
            f"| {letter} | {each.date} | {each.commit or 'unknown'} | {each.took_s / 60:.1f} | {machine} "
            f"| {_versions(each)} | {others} | {absent} |"
        )
    lines += ["", "All modules were compiled before, as pip leaves them.", ""]
    if any("reference" in name for run in runs for name in run.conditions.versions):
        lines += [_REFERENCE, ""]
    return "\n".join(lines)


def _versions(conditions: Conditions) -> str:
    """Returns them; ours is the commit's where the tree itself was measured, not an installation."""
    return ", ".join(
        f"{name} {version}"
        for name, version in conditions.versions.items()
        if not (name == OURS and version == "not installed")
    )


def _conditions(conditions: Conditions, labels: Mapping[str, str]) -> str:
    lines = [
        f"- {conditions.date}, commit {conditions.commit or 'unknown'}, {conditions.took_s / 60:.1f} min",
        f"- {conditions.processor}, {conditions.cpus} CPUs, {conditions.memory_gib:g} GiB, "
        f"Linux {conditions.kernel}, Python {conditions.python}",
        f"- {_versions(conditions)}",
        f"- others on the machine: {conditions.others}",
        "- all modules compiled before, as pip leaves them",
    ]
    if not conditions.is_quiet:
        lines.append("- **The machine was not quiet: read the ratios, not the seconds.**")
    if conditions.quick:
        lines.append("- **A quick run: too few samples for a verdict.**")
    if conditions.only:
        lines.append(f"- **A partial run: only {', '.join(conditions.only)}.**")
    if any("reference" in name for name in conditions.versions):
        lines.append(f"- {_REFERENCE}")
    lines += [f"- not measured: {labels.get(key, key)}: {why}" for key, why in conditions.absent.items()]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[tuple[Row, str]], labels: Mapping[str, str]) -> str:
    shown = [key for key in labels if any(row.samples.get(key) for row, _ in rows)]
    head = ["what", *(labels[key] for key in shown), f"{OURS} : peers", "target"]
    lines = [head, ["---"] * len(head)]
    lines += [
        [_title(row) + mark, *(cell(row, key) for key in shown), _ratio_cell(row, labels), _target_cell(row, labels)]
        for row, mark in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _title(row: Row) -> str:
    return row.title if row.statistic is Statistic.MEDIAN else f"{row.title} ({row.statistic})"


def cell(row: Row, subject: str) -> str:
    """Returns what one subject reached in one row."""
    samples, good = row.samples.get(subject, []), row.good(subject)
    if not samples:
        return "-"
    if row.unit is Unit.RECOVERED:
        return f"{sum(sample == 1.0 for sample in good)} of {len(samples)}"
    if not good:
        return f"none of {len(samples)} runs passed"
    summary = Summary.of(good)
    low, middle, high = (show(value, row.unit) for value in (summary.low, summary.median, summary.high))
    runs = f"n {summary.count}" if len(good) == len(samples) else f"{len(good)} of {len(samples)} runs passed"
    if row.statistic is not Statistic.MEDIAN:
        judged = high if row.statistic is Statistic.WORST else show(percentile(good, 99), row.unit)
        return f"{judged} (median {_without_unit(middle, row.unit)}, lowest {_without_unit(low, row.unit)}; {runs})"
    if summary.low == summary.high:
        return f"{middle} ({runs})"
    return f"{middle} ({_without_unit(low, row.unit)} to {_without_unit(high, row.unit)}; {runs})"


def _without_unit(text: str, unit: Unit) -> str:
    return text.removesuffix(f" {unit}")


def _ratio_cell(row: Row, labels: Mapping[str, str]) -> str:
    lines: list[str] = []
    for peer, label in labels.items():
        pairs = row.ratios_to(peer) if peer != OURS else []
        if pairs:
            summary = Summary.of(pairs)
            lines.append(f"{label}: {_times(summary.median)} ({_times(summary.low)} to {_times(summary.high)})")
    return "<br>".join(lines) or "-"


def _times(ratio: float) -> str:
    """Returns "1/12" below one, "1.3" above."""
    if 0 < ratio < 0.95:
        inverse = 1 / ratio
        return f"1/{inverse:,.0f}" if inverse >= 10 else f"1/{inverse:.1f}"
    return f"{ratio:.2f}"


def _target_cell(row: Row, labels: Mapping[str, str]) -> str:
    return "<br>".join(_told(finding) for finding in judge(row, labels)) or "-"


def _told(finding: Finding) -> str:
    match finding.met:
        case True:
            return f"{finding.wanted}: met"
        case False:
            return f"{finding.wanted}: **not met**"
        case None:
            return f"{finding.wanted}: not measured"


def _notes(rows: Sequence[Row]) -> str:
    lines = [f"- {row.title.split(':')[0]}: {note}" for row in rows for note in row.notes]
    return "\n".join(lines) + "\n" if lines else ""
