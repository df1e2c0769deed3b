"""Which rules of the tables of faults and of security can be taken away, and which tests must fail then?"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENTRIES = Path(__file__).parent / "rules"
ROWS_WITHOUT = ENTRIES / "rows_without.toml"
TABLES = tuple(ROOT / "docs/architecture" / name for name in ("faults.md", "cluster-faults.md", "security.md"))
_ROW = re.compile(r"\| ([A-ES]\d[^|]*) \|")


@dataclass(frozen=True)
class Rule:
    """A rule of a row: `file` without the rule has `without` in the place of `text`."""

    row: str
    says: str
    file: str
    text: str
    without: str
    tests: tuple[str, ...]

    def taken_from(self, source: str) -> str:
        """Raises ValueError if the text does not occur exactly once."""
        if source.count(self.text) != 1:
            raise ValueError(f"{self.file} has it {source.count(self.text)} times instead of once:\n{self.text}")
        return source.replace(self.text, self.without)


def rules() -> list[Rule]:
    """Returns all entries, in the order of the tables' rows."""
    order = rows()
    texts = [path.read_text() for path in sorted(ENTRIES.glob("*.toml"))]
    entries = [each for text in texts for each in tomllib.loads(text).get("rule", ())]
    found = [Rule(**each | {"tests": tuple(each["tests"])}) for each in entries]
    return sorted(found, key=lambda rule: order.index(rule.row) if rule.row in order else len(order))


def rows_without() -> dict[str, str]:
    """Returns the reason of each row that has no entry."""
    return tomllib.loads(ROWS_WITHOUT.read_text())


def rows(*tables: Path) -> list[str]:
    """Returns the first cell of each row of these tables, or of all, once."""
    lines = [line for table in tables or TABLES for line in table.read_text().splitlines()]
    return list(dict.fromkeys(found[1].strip() for line in lines if (found := _ROW.match(line))))
