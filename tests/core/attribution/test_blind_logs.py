"""How good are the rules on logs that were labelled before their author had seen them? As the documentation says."""

from __future__ import annotations

from pathlib import Path

from tests.core.attribution.labelled import read
from tests.core.attribution.measured import Share, measure, table_rows

PAGE = Path(__file__).parents[3] / "docs/attribution.md"
MEASURED = measure(read("blind_logs.txt"))


def shares(share: Share) -> tuple[float, float]:
    return share.both / share.said, share.both / share.true


def test_the_rules_stay_as_good_as_they_were() -> None:
    assert min(shares(MEASURED.cause)) >= 0.98
    assert min(shares(MEASURED.culprits)) >= 0.95
    assert shares(MEASURED.stop) == (1.0, 1.0)
    assert min(shares(MEASURED.kinds[""])) >= 0.95


def test_the_documentation_has_these_figures() -> None:
    assert [row for row in table_rows(MEASURED) if row not in _rows_of_now()] == []


def _rows_of_now() -> list[str]:
    """Returns the rows of the table, without the historical columns of the first contact."""
    cells = [line.split("|") for line in PAGE.read_text().splitlines() if line.count("|") == 7]
    return ["|".join([*row[:3], *row[5:]]) for row in cells]
