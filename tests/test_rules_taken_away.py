"""Can each rule of the tables of faults and of security still be taken away, and does each row have such a rule?

`python -m tests.soak rules` takes them away, and runs the tests that must fail then.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from tests.soak import rule_removal
from tests.soak.rule_entries import ROOT, Rule, rows, rows_without, rules


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: f"{rule.row.split()[0]}: {rule.says}")
def test_a_rule_is_where_its_entry_says(rule: Rule):
    changed = rule.taken_from((ROOT / rule.file).read_text())
    if rule.file.endswith(".py"):
        ast.parse(changed)
    assert rule.row in rows()
    assert rule.tests


def test_each_test_that_must_fail_exists():
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    named = {tuple(test.split("::", 1)) for rule in rules() for test in rule.tests}
    there = {
        file: {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, functions)}
        for file in {file for file, _ in named}
    }
    assert sorted(f"{file}::{name}" for file, name in named if name.split("::")[-1] not in there[file]) == []


def test_each_row_has_a_rule_or_a_reason():
    with_a_rule, without = {rule.row for rule in rules()}, rows_without()
    assert [row for row in rows() if row not in with_a_rule and not without.get(row)] == []
    assert [row for row in without if row in with_a_rule or row not in rows()] == []


def test_a_rule_that_a_test_misses_is_told_from_one_that_none_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In a small project: the real ones take hours."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "sums.py").write_text("def total(a, b):\n    return a + b\n")
    (project / "tests").mkdir()
    (project / "tests/test_sums.py").write_text(
        "from sums import total\n\n"
        "def test_it_adds():\n    assert total(2, 1) == 3\n\n"
        "def test_nothing():\n    assert total(0, 0) == 0\n"
    )
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --import-mode=importlib\n")
    for command in (("init", "-q"), ("add", "."), ("-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "t")):
        subprocess.run(["git", *command], cwd=project, check=True)
    monkeypatch.setattr(rule_removal, "ROOT", project)
    copy = rule_removal.Copy(tmp_path / "copy")
    tests = ("tests/test_sums.py::test_it_adds", "tests/test_sums.py::test_nothing")
    rule = Rule("A1", "sums are sums", "sums.py", "a + b", "a - b", tests)
    assert copy.outcome_of(tests) == dict.fromkeys(tests, "passed")
    assert copy.without(rule) == {tests[0]: "fell", tests[1]: "passed"}
    assert copy.outcome_of(tests) == dict.fromkeys(tests, "passed")
