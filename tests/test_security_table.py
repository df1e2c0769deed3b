"""Does the table of security rules name existing tests, and does it have a row for each rule?"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "architecture" / "security.md"
RULES = {f"S{number}" for number in range(1, 11)}


def _rows() -> list[str]:
    return [line for line in TABLE.read_text().splitlines() if re.match(r"\| [SB]\d", line)]


def test_every_rule_has_a_row():
    assert {row.split()[1] for row in _rows()} >= RULES


def test_every_row_names_tests_that_exist():
    for row in _rows():
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, name in named:
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            there = {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, functions)}
            assert name in there, f"{file}::{name}"
