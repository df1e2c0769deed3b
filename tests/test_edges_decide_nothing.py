"""An edge translates: no order and no verdict is made there, nor that a node is lost. Other nodes' come by a codec."""

from __future__ import annotations

import ast
import typing
from pathlib import Path

from supervisor.core import orders
from supervisor.core.cluster.cluster_messages import NodeHeard, NodeLost, NodeSilent

EDGES = Path(__file__).parents[1] / "supervisor" / "edges"
MADE_IN_CORE = {kind.__name__ for kind in (*typing.get_args(orders.Order), NodeHeard, NodeLost, NodeSilent)} | {
    "Verdict"
}


def made_there(source: str) -> list[str]:
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    names = (call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls)
    return sorted(MADE_IN_CORE.intersection(names))


def test_no_edge_makes_an_order_or_a_verdict() -> None:
    found = {path.name: made for path in EDGES.rglob("*.py") if (made := made_there(path.read_text()))}
    assert not found, f"these decide, which is for supervisor/core: {found}"


def test_one_that_does_is_found() -> None:
    assert made_there("post(Ordered(job, orders.WindDown(why)))") == ["WindDown"]
    assert made_there("verdict = Verdict(state, 1, why)") == ["Verdict"]
    assert made_there("report(messages.NodeLost(node, why))") == ["NodeLost"]
    assert not made_there("match order:\n    case orders.WindDown(why): pass")
