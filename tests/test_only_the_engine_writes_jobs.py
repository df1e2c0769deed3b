"""The record of a job has one writer, the engine: queries, edges and wiring only read it."""

from __future__ import annotations

import ast
from pathlib import Path

from supervisor.engine.job_record import JobRecord

SUPERVISOR = Path(__file__).parents[1] / "supervisor"
FIELDS = frozenset(JobRecord.__struct_fields__)
WRITERS = {"show", "end", "record", "begin_spawner", "begin_cycle", "was_recorded", "was_taken_in", "take"}
CHANGERS = {"add", "append", "clear", "discard", "extend", "pop", "remove", "update"}
NAMES = {"job", "record"}  # of variables and fields that hold one


def writes(source: str) -> list[str]:
    """Returns what the source writes of a job's record: a field, an item of one, or by a method."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            found += _field(node.value if isinstance(node, ast.Subscript) else node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in CHANGERS:
                found += _field(node.func.value)
            elif node.func.attr in WRITERS and _is_job(node.func.value):
                found.append(node.func.attr)
    return sorted(found)


def _field(node: ast.expr) -> list[str]:
    is_one = isinstance(node, ast.Attribute) and node.attr in FIELDS and _is_job(node.value)
    return [node.attr] if is_one and isinstance(node, ast.Attribute) else []


def _is_job(node: ast.expr) -> bool:
    """Whether it is named like a record, or is looked up among jobs."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name in NAMES
        case ast.Subscript(ast.Name(name) | ast.Attribute(attr=name)):
            return name.removeprefix("_") == "jobs"
        case _:
            return False


def test_nobody_but_the_engine_writes_the_record_of_a_job() -> None:
    others = (path for path in SUPERVISOR.rglob("*.py") if "engine" not in path.relative_to(SUPERVISOR).parts[0])
    found = {str(path.relative_to(SUPERVISOR)): wrote for path in others if (wrote := writes(path.read_text()))}
    assert not found, f"these write what only supervisor/engine may: {found}"


def test_one_that_does_is_found() -> None:
    assert writes("job.shown = msgspec.structs.replace(job.shown, ranks=ranks)") == ["shown"]
    assert writes("self._jobs[job_id].ended_at_ns = now_ns") == ["ended_at_ns"]
    assert writes("restored.record.sequence += 1") == ["sequence"]
    assert writes("job.pids[0] = 7; del job.pids[1]; job.cgroups.add(path)") == ["cgroups", "pids", "pids"]
    assert writes("job.take(life, 7)") == ["take"]
    assert not writes("said = job.verdict; jobs[job_id] = job; self._journal.record(event); job.spec.nodes")


def test_each_method_that_writes_is_known_here() -> None:
    source = ast.parse((SUPERVISOR / "engine" / "job_record.py").read_text())
    (record,) = (node for node in source.body if isinstance(node, ast.ClassDef) and node.name == "JobRecord")
    methods = [node for node in record.body if isinstance(node, ast.FunctionDef)]
    wrote = {each.name for each in methods if writes(ast.unparse(each).replace("self", "job"))}
    calls = {each.name for each in methods if "_forget_recorded" in ast.unparse(each)}
    assert {name for name in wrote | calls if not name.startswith("_")} == WRITERS
