"""Does every error that a user may see say what can't be done, why, and what to do about it?

`worker_client` has such a test of its own: training scripts get Python's exceptions, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "supervisor"
THREE_PARTS = re.compile(r"(cannot .+?|x): .+; .+", re.DOTALL)
VALUE = "x"  # stands for what is only known at run time
SHOWN = re.compile(
    r"(NotFound|AlreadyExists|InvalidRequest|NotPermitted|NotNow|Cordoned|Exhausted|InUse|NoSupervisor|Configuration)Error$"
)
QUOTING = {  # They quote a reason that has its remedy.
    "x",
    "cannot start: x",
    "cannot answer x: x",
    "cannot listen at x: x",
    "cannot x job x: x",
    "cannot use the token in x: x",
    "cannot use the token file x: x",
    "cannot use the key x of tls_key: x",
    "cannot use socket directory x: xx",
    "cannot lead the rendezvous of job x: x",
    "cannot drain this node: no holdfast daemon runs here; x",
}
INTERNAL = {
    "no answer within x s",  # its caller says of whom, and what to do
    # The machines never order it, or its caller says what follows.
    "cannot give an order to node x: another node leads job x",
    "cannot record anything of job x: another node leads it",
    "cannot start workers: the spawner is lost",
}


def text_of(node: ast.expr) -> str:
    match node:
        case ast.Constant(str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(map(text_of, values))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
        case _:
            return VALUE


def told() -> Iterator[tuple[str, str, str]]:
    """Yields place, class and text of every error that has one. NoAnswerError is a note beside an answer."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                name = ast.unparse(node.func).rpartition(".")[2]
                if SHOWN.search(name):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", name, text_of(node.args[0])


def test_each_error_says_what_why_and_what_to_do() -> None:
    found = list(told())
    assert len(found) > 150
    wrong = [
        f"{place} {name}: {text}"
        for place, name, text in found
        if text not in QUOTING | INTERNAL and not THREE_PARTS.fullmatch(text)
    ]
    assert not wrong, "not of the form “cannot <do what>: <why>; <remedy>”:\n  " + "\n  ".join(wrong)


def test_no_exception_from_the_rule_is_left_over() -> None:
    assert {text for _, _, text in told()} >= (QUOTING | INTERNAL)
