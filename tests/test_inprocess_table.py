"""Does docs/architecture/in-process-faults.md name existing tests, and at least one for each required behaviour?"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "architecture" / "in-process-faults.md"
ROWS = [str(number) for number in range(1, 21)]
COMPLETE = (
    "tests/e2e/test_inprocess_silence.py",
    "tests/e2e/test_restart_steps.py",
    "tests/worker_client/inprocess/test_faults.py",
)


def _rows() -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns the number of each row, and the tests that it names."""
    lines = [line for line in TABLE.read_text().splitlines() if re.match(r"\| \d", line)]
    return [(line.split("|")[1].strip(), re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line)) for line in lines]


def _tests_of(name: str) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {node.name for node in ast.parse((ROOT / name).read_text()).body if isinstance(node, functions)}
    return {name for name in found if name.startswith("test_")}


def test_every_test_that_the_table_names_exists():
    named = {each for _, tests in _rows() for each in tests}
    assert len(named) > 80
    files = {file for file, _ in named}
    tests = {file: _tests_of(file) for file in files if (ROOT / file).exists()}
    missing = [f"{file}::{name}" for file, name in sorted(named) if name not in tests.get(file, set())]
    assert not missing


def test_every_row_is_there_and_names_a_test():
    rows = _rows()
    assert list(dict.fromkeys(number for number, _ in rows)) == ROWS
    assert [number for number, tests in rows if not tests] == []


def test_every_test_of_faults_in_a_wrapped_call_is_in_the_table():
    named = {each for _, tests in _rows() for each in tests}
    lacking = [f"{file}::{name}" for file in COMPLETE for name in sorted(_tests_of(file)) if (file, name) not in named]
    assert not lacking
