"""Does the catalogue of events have every kind that the code records, and no other?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from supervisor.core.event_kinds import KINDS, THEMES

PRODUCT = Path(__file__).parents[2] / "supervisor"
TELLS = {"JobEvent", "Say", "Warn", "_say", "say", "said"}  # functions and records that take a kind
NOT_EVENTS = {"missing_file"}  # a kind of sign that the attribution finds in a log
BY_STATE = {"job_succeeded", "job_failed", "job_stopped"}  # made of "job_" and the job's state
BY_NAME = {"node_suspected", "straggler_found", "straggler_gone"}  # named by a constant in the code


def _literals(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _literals(node.body)
        yield from _literals(node.orelse)
    elif isinstance(node, ast.Tuple) and node.elts:
        yield from _literals(node.elts[0])
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _told(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in TELLS:
            for argument in node.args[:3]:
                yield from _literals(argument)
        elif isinstance(node, ast.Assign) and any("kind" in ast.unparse(target) for target in node.targets):
            yield from _literals(node.value)


def test_every_kind_that_is_told_is_explained_and_no_other():
    found = {
        kind
        for path in PRODUCT.rglob("*.py")
        if path.name != "event_kinds.py"
        for kind in _told(path)
        if re.fullmatch(r"[a-z]+(_[a-z]+)+", kind)
    }
    assert found - NOT_EVENTS | BY_STATE | BY_NAME == set(KINDS)


def test_a_kind_stands_in_one_theme_and_its_sentences_are_sentences():
    assert sum(len(kinds) for _, kinds in THEMES) == len(KINDS)
    for name, kind in KINDS.items():
        for sentence in (kind.meaning, kind.remedy):
            assert not sentence or (sentence[0].isupper() or sentence.startswith("`holdfast ")), name
            assert not sentence or sentence.endswith("."), name
