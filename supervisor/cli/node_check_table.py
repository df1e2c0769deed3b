"""How are the checks of nodes shown to people: all checks of one node, the bad ones of many?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from supervisor.cli import output
from supervisor.ports.reports import CheckReport, JobNodeReport

HEADS = ("CHECK", "NODE", "VERDICT", "TOOK", "LOOKED AT", "REASON")
ROWS_MAX = 16  # beyond it, healthy ones are not shown
ORDER = ("unhealthy", "suspect", "unanswered", "skipped", "healthy")


def name(check: CheckReport) -> str:
    """Returns a text like "storage /mnt/data"."""
    return f"{check.check} {check.subject}" if check.subject else check.check


def counts(checks: Sequence[CheckReport]) -> str:
    """Returns a text like "1 unhealthy, 12 healthy"; "" if there are none."""
    numbers = Counter(check.verdict for check in checks)
    known = [verdict for verdict in ORDER if verdict in numbers]
    return ", ".join(f"{numbers[verdict]} {verdict}" for verdict in (*known, *sorted(set(numbers).difference(ORDER))))


def table(nodes: Sequence[JobNodeReport], now_ns: int, layout: output.TextLayout) -> str:
    """Returns the table of checks; "" if no node has any."""
    pairs = [(check, node.name) for node in nodes for check in node.checks]
    if len(pairs) > ROWS_MAX:
        pairs = [(check, node) for check, node in pairs if check.verdict != "healthy"]
    rows = [_row(check, node, now_ns) for check, node in pairs]
    return output.table(HEADS, rows, layout) if rows else ""


def _row(check: CheckReport, node: str, now_ns: int) -> tuple[str, ...]:
    age = f"{output.duration((now_ns - check.found_at_ns) / 1e9)} ago"
    return name(check), node, check.verdict, _took(check.took_s), age, check.reason


def _took(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else output.duration(seconds)
