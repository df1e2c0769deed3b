"""Which lines of a script change what a load reads, and which of these may be carried out before the load instead?

Only one kind may be: the assignment of a literal text to a variable with a literal name.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

# What torch._inductor reads when it is loaded, beside TORCHINDUCTOR_….
READ_BY_COMPILER = "CXX$|AOT_?INDUCTOR|INDUCTOR_|ENABLE_PERSISTENT_TMA|UNSAFE_SKIP_FSDP|PARTITIONER_|CUTEDSL|CUTLASS"
# Variables that torch, a BLAS or OpenMP runtime, the C library or the interpreter reads when it is loaded. CUDA reads
# CUDA_VISIBLE_DEVICES at the first call into it, which a load never makes.
_READ_AT_LOAD = (
    r"(?!CUDA_VISIBLE_DEVICES$)"
    r"(?:(OMP|MKL|KMP|GOMP|OPENBLAS|GOTO|BLIS|VECLIB|NUMEXPR|ATEN|C10|TORCH|TORCHINDUCTOR|TRITON|PYTORCH|CUDA|HIP|ROCR|PYTHON)_?"
    r"|LD_PRELOAD$|LD_LIBRARY_PATH$|GLIBC_TUNABLES$|MALLOC_|PROTOCOL_BUFFERS_"
    rf"|{READ_BY_COMPILER})"
)
# Calls that change what a later import does, or how many threads it makes.
_FORBIDDEN_CALLS = {
    "os.sched_setaffinity": "binds the process to CPUs",
    "site.addsitedir": "adds a folder of modules",
    "sys.setdlopenflags": "changes how libraries are loaded",
}
_WRITES = {"setdefault", "update", "pop", "clear", "__setitem__", "popitem"}

Text = Callable[[ast.expr], "str | None"]  # the text that an expression stands for, if known


class Assignment(NamedTuple):
    """One variable that the script sets."""

    name: str
    value: str
    is_default: bool  # only where it is not set


class Objection(NamedTuple):
    """A line that changes what a load reads: the rest of "line N, …", and the variable if it is about that alone."""

    text: str
    variable: str = ""

    @classmethod
    def on(cls, variable: str) -> Objection:
        return cls(f"changes {variable}", variable)


def is_read_at_load(name: str) -> bool:
    """Returns whether torch, or what it loads, reads this variable when it is loaded."""
    return re.match(_READ_AT_LOAD, name) is not None


def assignments(statement: ast.stmt, text: Text) -> tuple[Assignment, ...] | None:
    """Returns what `statement` assigns if it does nothing else and all values are known; None otherwise."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Subscript) and _is_environ(target.value):
            return _assigned([(target.slice, statement.value)], text, is_default=False)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and _is_environ(call.func.value):
            if call.func.attr == "setdefault" and len(call.args) == 2 and not call.keywords:
                return _assigned([(call.args[0], call.args[1])], text, is_default=True)
            if call.func.attr == "update":
                return _assigned(list(_updated(call)), text, is_default=False)
    return None


def objection(node: ast.AST, *, take_folder: Callable[[ast.Call], bool]) -> Objection | None:
    """Returns how `node` changes what a load reads; None if it does not.

    `take_folder` gets each call of sys.path.insert and returns whether its folder is known.
    """
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
        for target in targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                return _on_variable([target.slice])
            if _is_environ(target):
                return Objection("changes os.environ as a whole")
            if ast.unparse(target) in ("sys.path", "sys.path[:]") and isinstance(node, ast.Assign):
                return Objection("replaces sys.path")
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func)
    if name == "sys.path.insert" and not take_folder(node):
        return Objection("puts a folder that is computed before the installed modules")
    if name in _FORBIDDEN_CALLS:
        return Objection(_FORBIDDEN_CALLS[name])
    if name in ("os.putenv", "putenv", "os.unsetenv", "unsetenv"):
        return _on_variable(node.args[:1])
    if isinstance(node.func, ast.Attribute) and _is_environ(node.func.value) and node.func.attr in _WRITES:
        return _on_variable([key for key, _ in _updated(node)] if node.func.attr == "update" else node.args[:1])
    return None


def _assigned(
    pairs: list[tuple[ast.expr | None, ast.expr]], text: Text, *, is_default: bool
) -> tuple[Assignment, ...] | None:
    found: list[Assignment] = []
    for key, value in pairs:
        name, assigned = key and text(key), text(value)
        if not name or assigned is None or "=" in name or "\0" in name + assigned:
            return None
        found.append(Assignment(name, assigned, is_default))
    return tuple(found)


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ", "os.environb")


def _updated(call: ast.Call) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    for argument in call.args:
        if isinstance(argument, ast.Dict):
            yield from zip(argument.keys, argument.values, strict=True)
        else:
            yield None, argument
    for word in call.keywords:
        yield ast.Constant(word.arg) if word.arg else None, word.value


def _on_variable(keys: list[ast.expr] | list[ast.expr | None]) -> Objection | None:
    for key in keys:
        if not isinstance(key, ast.Constant):
            return Objection("changes an environment variable whose name is computed")
        name = os.fsdecode(key.value) if isinstance(key.value, bytes) else str(key.value)
        if is_read_at_load(name):
            return Objection.on(name)
    return None
