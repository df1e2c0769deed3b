"""Do the tables of faults, on one node and between nodes, name existing tests, and have a row for each fault?"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "architecture" / "faults.md"
BETWEEN_NODES = ROOT / "docs" / "architecture" / "cluster-faults.md"
TABLES = (TABLE, BETWEEN_NODES)
ROWS = [f"A{n}" for n in range(1, 21)] + [f"B{n}" for n in range(1, 13)] + [f"C{n}" for n in range(1, 15)]
ROWS_OF_HEALTH = [f"E{n}" for n in range(1, 12)]


ROWS_BETWEEN_NODES = [f"D{n}" for n in range(1, 21)]


def _named(*tables: Path) -> list[tuple[str, str]]:
    return [
        found
        for table in tables
        for found in re.findall(r"`(tests/[\w/]+\.py)::(?:Test\w+::)?(\w+)`", table.read_text())
    ]


def _rows(table: Path) -> dict[str, str]:
    """Returns each row's line."""
    lines = [line for line in table.read_text().splitlines() if line.startswith("| ")]
    return {row: line for line in lines for row in line.split("|")[1].split()}


def _tests_of(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions)}


def test_every_test_that_the_table_names_exists():
    named = _named(*TABLES)
    assert len(named) > 70
    missing = [f"{file}::{name}" for file, name in named if name not in _tests_of(ROOT / file)]
    assert not missing


def test_every_row_is_there():
    assert [row for row in (*ROWS, *ROWS_OF_HEALTH) if row not in _rows(TABLE)] == []
    assert [row for row in ROWS_BETWEEN_NODES if row not in _rows(BETWEEN_NODES)] == []


def test_a_row_without_a_test_says_that_it_is_open():
    assert [
        row for row, line in _rows(BETWEEN_NODES).items() if "D" in row and "::" not in line and "open:" not in line
    ] == []


def test_every_end_to_end_test_of_hangs_and_faults_is_in_the_table():
    named = set(_named(*TABLES))
    for name in (
        "e2e/test_hangs",
        "e2e/test_monitoring",
        "e2e/test_resources",
        "e2e/test_node_troubles",
        "cluster/test_torn_networks",
    ):
        path = ROOT / "tests" / f"{name}.py"
        lacking = {
            test
            for test in _tests_of(path)
            if re.match(r"test_[abcd]\d", test) and (path.relative_to(ROOT).as_posix(), test) not in named
        }
        assert not lacking
