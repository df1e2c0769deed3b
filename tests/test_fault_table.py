"""Does docs/architecture/faults.md name tests that exist, and a row for each fault of one node?"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "architecture" / "faults.md"
ROWS = [f"A{n}" for n in range(1, 21)] + ["B1", "B6", "B9", "B12"] + [f"C{n}" for n in range(1, 11)]


def _named() -> list[tuple[str, str]]:
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TABLE.read_text())


def _tests_of(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)}


def test_every_test_that_the_table_names_exists():
    named = _named()
    assert len(named) > 50
    missing = [f"{file}::{name}" for file, name in named if name not in _tests_of(ROOT / file)]
    assert not missing


def test_every_row_is_there():
    cells = " ".join(line.split("|")[1] for line in TABLE.read_text().splitlines() if line.startswith("| ")).split()
    assert [row for row in ROWS if row not in cells] == []


def test_every_end_to_end_test_of_hangs_and_faults_is_in_the_table():
    named = set(_named())
    for name in ("hangs", "monitoring", "resources"):
        path = ROOT / "tests" / "e2e" / f"test_{name}.py"
        lacking = {
            test
            for test in _tests_of(path)
            if re.match(r"test_[abc]\d", test) and (path.relative_to(ROOT).as_posix(), test) not in named
        }
        assert not lacking
