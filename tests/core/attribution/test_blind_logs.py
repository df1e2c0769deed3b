"""How good are the rules on logs that were labelled before their author had seen them? As the documentation says."""

from __future__ import annotations

from pathlib import Path

from tests.core.attribution.labelled import read
from tests.core.attribution.measured import measure, table_rows

PAGE = Path(__file__).parents[3] / "docs/attribution.md"
LOGS = read("blind_logs.txt")


def test_the_documentation_has_these_figures() -> None:
    missing = [row for row in table_rows(measure(LOGS)) if row not in PAGE.read_text().splitlines()]
    assert not missing, "docs/attribution.md should say:\n" + "\n".join(missing)
