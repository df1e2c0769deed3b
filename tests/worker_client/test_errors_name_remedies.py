"""Does every error that a training script may see say what can't be done, why, and what to do about it?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "worker_client"
THREE_PARTS = re.compile(r"(cannot .+?|x): .+; .+", re.DOTALL)  # x: a first part that two errors share
VALUE = "x"  # stands for what is only known at run time
ERROR = re.compile(r"(Error|Timeout|Overflow|Exceeded|Abort|Discarded)$")
# Nobody outside of worker_client sees these; whoever catches them logs them or says what follows.
INTERNAL = {"ChannelProtocolError", "PageUnusableError", "OverfullError", "UnreadableError", "_SkippedError"}
# The kernel's words with a path, and reasons that another error quotes.
QUOTED = {"OSError", "PermissionError", "_ConnectionEndedError", "BecomeWorkerError", "CannotExecuteError"}
QUOTING = {  # They quote a reason with its remedy.
    "cannot start a private supervisor: x",
    "cannot serve a store on x: x",
}
REASONS = {
    "it is empty", "it has more than x bytes", "it belongs to another user",  # endpoint.py
    "x of x ranks came within x s",  # node_meeting.py
}  # fmt: skip
ASSERTIONS = re.compile(r"does not hold|not all ranks|has to be of type|os\.path\.|is_available\(\)|is_initialized\(\)")


def text_of(node: ast.expr, constants: dict[str, str]) -> str:
    match node:
        case ast.Constant(str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(text_of(each, constants) for each in values)
        case ast.FormattedValue(ast.Name(name)) | ast.Name(name):
            return constants.get(name, VALUE)
        case _:
            return VALUE


def told() -> Iterator[tuple[str, str, str]]:
    """Yields place, class and text of every error that is made with a text."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            target.id: text_of(each.value, {})
            for each in tree.body
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            texts = [text_of(each, constants) for each in node.args]
            if ERROR.search(name) and texts:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", name, max(texts, key=len)


def test_each_error_says_what_why_and_what_to_do():
    found = list(told())
    assert len(found) > 80
    wrong = [
        f"{place} {name}: {text}"
        for place, name, text in found
        if name not in INTERNAL | QUOTED
        and text != VALUE
        and text not in REASONS | QUOTING
        and not (name == "AttributeError" and text.startswith("module x has no attribute"))  # Python's own words
        and not THREE_PARTS.fullmatch(text)
    ]
    assert not wrong, "not of the form “cannot <do what>: <why>; <remedy>”:\n  " + "\n  ".join(wrong)


def test_no_error_quotes_an_assertion_or_hides_who_is_missing():
    wrong = [f"{place} {name}: {text}" for place, name, text in told() if ASSERTIONS.search(text)]
    assert not wrong, "\n  ".join(wrong)
