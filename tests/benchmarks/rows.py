"""What does one line of the report hold? The work, the samples of each subject, and its target."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.benchmarks.figures import Summary, percentile, ratios


class Unit(enum.StrEnum):
    SECONDS = "s"
    MICROSECONDS = "µs"
    MIB = "MiB"
    CPU_S_PER_MINUTE = "s/min"
    CORES = "cores"
    PROCESSES = "processes"
    RECOVERED = "recovered"  # samples are 1.0 (the job came back) and 0.0
    INPUTS = "inputs"
    MESSAGES = "messages"
    SHARE = "%"  # samples from 0 to 1
    ROUNDS = "rounds"
    MB_PER_S = "MB/s"
    LINES = "lines"
    LINES_PER_S = "lines/s"


class Statistic(enum.StrEnum):
    """The figure of its samples by which a row is judged."""

    MEDIAN = "median"
    P99 = "p99"
    WORST = "max"


class Group(enum.StrEnum):
    SPEED = "Speed"
    COST = "Cost"
    ENDURANCE = "Endurance"


@dataclass(frozen=True, slots=True)
class Target:
    """A limit in the row's unit (at most, or at least), and the largest share of a peer's figure in the same run."""

    at_most: float | None = None
    at_least: float | None = None
    share_of: Mapping[str, float] = field(default_factory=dict[str, float])  # subject's key → ours / theirs
    never_below: float | None = None  # of any single sample


OURS = "holdfast"


@dataclass(slots=True)
class Row:
    key: str
    group: Group
    title: str
    unit: Unit
    target: Target = field(default_factory=Target)
    statistic: Statistic = Statistic.MEDIAN
    samples: dict[str, list[float | None]] = field(default_factory=dict[str, "list[float | None]"])  # None: run failed
    notes: list[str] = field(default_factory=list[str])
    picture: str = ""  # the text of an SVG file that the report writes beside its page

    def add(self, subject: str, sample: float | None) -> None:
        self.samples.setdefault(subject, []).append(sample)

    def good(self, subject: str) -> list[float]:
        """Returns the samples of the runs that reached their end."""
        return [sample for sample in self.samples.get(subject, []) if sample is not None]

    def figure(self, subject: str) -> float | None:
        """Returns the row's statistic for `subject`; None without a sample. A failed run counts as no recovery."""
        good = self.good(subject)
        if not good:
            return None
        if self.unit is Unit.RECOVERED:
            return sum(good) / len(self.samples[subject])
        match self.statistic:
            case Statistic.MEDIAN:
                return Summary.of(good).median
            case Statistic.P99:
                return percentile(good, 99)
            case Statistic.WORST:
                return max(good)

    def ratios_to(self, peer: str) -> list[float]:
        """Returns our samples over the peer's, pair by pair; none for shares and signed times."""
        if self.unit in (Unit.RECOVERED, Unit.SHARE) or self.target.never_below is not None:
            return []
        return ratios(self.samples.get(OURS, []), self.samples.get(peer, []))


@dataclass(frozen=True, slots=True)
class Finding:
    """One condition of a target, and whether it was met; None: could not be measured in this run."""

    wanted: str
    met: bool | None


def judge(row: Row, labels: Mapping[str, str]) -> list[Finding]:
    """Checks every condition of the row's target against this run's samples. `labels` names the subjects.

    One failed run of ours fails every condition: the figures of the other runs would look too good.
    """
    samples = row.samples.get(OURS, [])
    findings = _conditions(row, labels)
    return [Finding(found.wanted, False) for found in findings] if None in samples else findings


def _conditions(row: Row, labels: Mapping[str, str]) -> list[Finding]:
    target, figure = row.target, row.figure(OURS)
    name = "" if row.statistic is Statistic.MEDIAN or row.unit is Unit.RECOVERED else f"{row.statistic} "
    found: list[Finding] = []
    if target.at_most is not None:
        met = None if figure is None else figure <= target.at_most
        found.append(Finding(f"{name}≤ {show(target.at_most, row.unit)}", met))
    if target.at_least is not None:
        met = None if figure is None else figure >= target.at_least
        wanted = "all" if row.unit is Unit.RECOVERED else f"{name}≥ {show(target.at_least, row.unit)}"
        found.append(Finding(wanted, met))
    if target.never_below is not None:
        good = row.good(OURS)
        found.append(Finding("never early", min(good) >= target.never_below if good else None))
    for peer, share in target.share_of.items():
        pairs = row.ratios_to(peer)
        met = Summary.of(pairs).median <= share if pairs else None
        found.append(Finding(f"≤ 1/{1 / share:.3g} of {labels.get(peer, peer)}", met))
    return found


def show(value: float, unit: Unit) -> str:
    """Returns the figure with its significant digits."""
    if unit in (Unit.PROCESSES, Unit.INPUTS, Unit.ROUNDS, Unit.LINES):
        return f"{value:,.0f}"
    if unit is Unit.LINES_PER_S:
        return f"{value:,.0f} {unit}"
    if unit is Unit.SHARE:
        return f"{100 * value:.1f} %"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 or unit is not Unit.SECONDS else 3
    if 0 < size < 0.01:
        digits = 4
    text = f"{value:.{digits}f}"
    return text if unit is Unit.RECOVERED else f"{text} {unit}"
