"""Do the tables of faults, on one node and between nodes, name existing tests, and have a row for each fault?"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "architecture" / "faults.md"
BETWEEN_NODES = ROOT / "docs" / "architecture" / "cluster-faults.md"
TABLES = (TABLE, BETWEEN_NODES)
LAST_ROWS = {TABLE: {"A": 21, "B": 15, "C": 23, "E": 11}, BETWEEN_NODES: {"D": 21}}


def _named(*tables: Path) -> list[tuple[str, str]]:
    return [
        found
        for table in tables
        for found in re.findall(r"`(tests/[\w/]+\.py)::(?:Test\w+::)?(\w+)`", table.read_text())
    ]


def _rows(table: Path) -> list[tuple[str, str]]:
    """Returns each row with each of its lines."""
    lines = [line for line in table.read_text().splitlines() if re.match(r"\| [A-E]\d", line)]
    return [(row, line) for line in lines for row in line.split("|")[1].split()]


def _tests_of(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions)}


def test_every_test_that_the_table_names_exists():
    named = _named(*TABLES)
    assert len(named) > 70
    missing = [f"{file}::{name}" for file, name in named if name not in _tests_of(ROOT / file)]
    assert not missing


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.stem)
def test_every_row_is_there(table: Path):
    wanted = {f"{letter}{number}" for letter, last in LAST_ROWS[table].items() for number in range(1, last + 1)}
    assert {row for row, _ in _rows(table) if row[0] in LAST_ROWS[table]} == wanted


def test_a_line_without_a_test_says_that_it_is_open():
    lines = [line for table in TABLES for _, line in _rows(table)]
    assert [line for line in lines if "::" not in line and "open:" not in line] == []


def test_every_end_to_end_test_of_hangs_and_faults_is_in_the_table():
    named = set(_named(*TABLES))
    for name in (
        "e2e/test_hangs",
        "e2e/test_monitoring",
        "e2e/test_resources",
        "e2e/test_node_troubles",
        "e2e/test_storage_health",
        "cluster/test_torn_networks",
    ):
        path = ROOT / "tests" / f"{name}.py"
        lacking = {
            test
            for test in _tests_of(path)
            if re.match(r"test_[a-e]\d", test) and (path.relative_to(ROOT).as_posix(), test) not in named
        }
        assert not lacking
