"""What a thing needs it gets when it is made, and it is never told later whom to call.

So no attribute that holds a callback is assigned from outside its class, none starts as a stub that waits to be
replaced, and no method keeps one for later. Somebody who merely wants to hear of something follows announcements,
reads an inbox, or waits for an event.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ("supervisor", "worker_client")
OWN = ("self", "cls")
MAKES = ("__init__", "__post_init__", "__new__")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _trees() -> dict[str, ast.Module]:
    paths = (path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name)
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


def _is_alias(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and re.match(r"Callable\[", ast.unparse(node.value)) is not None


@cache
def _names_of_callables(file: str) -> frozenset[str]:
    """Returns "Callable", and the names in the file of types that are one: its own, and those that it imports."""
    found = {"Callable"}
    for node in ast.walk(_trees()[file]):
        if isinstance(node, ast.Assign) and _is_alias(node):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ImportFrom) and (source := f"{(node.module or '').replace('.', '/')}.py") in _trees():
            aliases = {
                target.id
                for each in _trees()[source].body
                if isinstance(each, ast.Assign) and _is_alias(each)
                for target in each.targets
                if isinstance(target, ast.Name)
            }
            found |= {each.asname or each.name for each in node.names if each.name in aliases}
    return frozenset(found)


def _is_callable(file: str, annotation: ast.expr | None) -> bool:
    """Returns whether the type is a callable, perhaps or None; a container of callables is none."""
    match annotation:
        case ast.Name(name):
            return name in _names_of_callables(file)
        case ast.Subscript(ast.Name(name)):
            return name in _names_of_callables(file)
        case ast.BinOp(left, ast.BitOr(), right):
            return _is_callable(file, left) or _is_callable(file, right)
        case _:
            return False


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yields the targets of an assignment, each with its value, as far as that is written there."""
    if isinstance(node, ast.AnnAssign):
        yield node.target, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple):
                values = node.value.elts if isinstance(node.value, ast.Tuple) else []
                fits = len(values) == len(target.elts)
                yield from ((each, values[place] if fits else None) for place, each in enumerate(target.elts))
            else:
                yield target, node.value


def _own_attribute(target: ast.expr) -> str | None:
    match target:
        case ast.Attribute(ast.Name(name), attribute) if name in OWN:
            return attribute
        case _:
            return None


def _classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yields all classes but protocols, which say what others have."""
    for file, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases):
                yield file, node


def _functions(of: ast.ClassDef) -> Iterator[Function]:
    yield from (node for node in of.body if isinstance(node, Function))


def _parameters(function: Function) -> dict[str, ast.expr | None]:
    arguments = function.args
    return {each.arg: each.annotation for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _callbacks_of(file: str, of: ast.ClassDef) -> set[str]:
    """Returns the attributes that hold a callback: as annotated, or set to a parameter that is one, or to a lambda."""
    found = {
        node.target.id
        for node in of.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_callable(file, node.annotation)
    }
    for function in _functions(of):
        parameters = _parameters(function)
        for node in ast.walk(function):
            for target, value in _assigned(node):
                attribute = _own_attribute(target)
                is_one = isinstance(node, ast.AnnAssign) and _is_callable(file, node.annotation)
                is_one |= isinstance(value, ast.Lambda)
                is_one |= isinstance(value, ast.Name) and _is_callable(file, parameters.get(value.id))
                if attribute is not None and is_one:
                    found.add(attribute)
    return found


@cache
def _callbacks() -> dict[str, frozenset[str]]:
    """Returns the attributes that hold a callback, each with the classes that have it."""
    found: dict[str, set[str]] = {}
    for file, of in _classes():
        for attribute in _callbacks_of(file, of):
            found.setdefault(attribute, set()).add(of.name)
    for file, tree in _trees().items():
        for node in tree.body:
            match node:
                case ast.AnnAssign(target=ast.Name(name), annotation=annotation) if _is_callable(file, annotation):
                    found.setdefault(name, set()).add(file)
                case _:
                    pass
    return {attribute: frozenset(classes) for attribute, classes in found.items()}


def _plain_attributes(file: str, tree: ast.Module) -> set[str]:
    """Returns the attributes of the file's own classes that hold no callback: by that name, the file means these."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    pairs = (pair for of in classes for node in ast.walk(of) for pair in _assigned(node))
    own = {_own_attribute(target) for target, _ in pairs} - {None}
    return {str(each) for each in own}.difference(*(_callbacks_of(file, of) for of in classes))


def _assigned_from_outside() -> Iterator[tuple[str, str]]:
    for file, tree in _trees().items():
        names = _callbacks().keys() - _plain_attributes(file, tree)
        for node in ast.walk(tree):
            for target, _ in _assigned(node):
                if isinstance(target, ast.Attribute) and _own_attribute(target) is None and target.attr in names:
                    yield f"{file}: {target.attr}", f"line {target.lineno}: {ast.unparse(target)}"


def _stubs() -> Iterator[tuple[str, str]]:
    for file, of in _classes():
        functions = {node.name for node in _trees()[file].body if isinstance(node, Function)}
        for function in _functions(of):
            if function.name not in MAKES:
                continue
            for node in ast.walk(function):
                is_one = isinstance(node, ast.AnnAssign) and _is_callable(file, node.annotation)
                for target, value in _assigned(node):
                    attribute = _own_attribute(target)
                    is_stub = isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in functions)
                    if attribute is not None and is_one and is_stub:
                        yield f"{file}: {attribute}", f"of {of.name}"


def _let_go(of: ast.ClassDef) -> set[str]:
    """Returns the attributes that a method of the class sets back to None."""
    found: set[str] = set()
    for function in _functions(of):
        for target, value in (pair for node in ast.walk(function) for pair in _assigned(node)):
            attribute = _own_attribute(target)
            is_none = isinstance(value, ast.Constant) and value.value is None
            if function.name not in MAKES and attribute is not None and is_none:
                found.add(attribute)
    return found


def _setters() -> Iterator[tuple[str, str]]:
    """Yields the methods that keep a callback for later, whatever else they do.

    One that the class itself lets go of is no wiring: it belongs to the one operation that the caller has asked for
    ("call this once it is sent"), or to the one connection whose handshake is done (`Line.listen`: what arrives before
    that waits in the line), and goes with it.
    """
    for file, of in _classes():
        let_go = _let_go(of)
        for function in _functions(of):
            if function.name in MAKES:
                continue
            given = {name for name, annotation in _parameters(function).items() if _is_callable(file, annotation)}
            for target, value in (pair for node in ast.walk(function) for pair in _assigned(node)):
                attribute = _own_attribute(target)
                is_kept = isinstance(value, ast.Name) and value.id in given
                if attribute is not None and is_kept and attribute not in let_go:
                    yield f"{file}: {attribute}", f"by {of.name}.{function.name}"


def _report(found: Iterator[tuple[str, str]], rule: str) -> None:
    late = sorted(f"{where} ({what})" for where, what in found)
    assert not late, f"{rule}:\n  " + "\n  ".join(late)


def test_no_callback_is_assigned_from_outside_its_class():
    _report(_assigned_from_outside(), "pass it when the thing is made, or let the thing post an event")


def test_no_stub_waits_to_be_replaced():
    _report(
        _stubs(), "a callback that a class has from the start is a method; else it is passed when the thing is made"
    )


def test_no_method_says_whom_to_call_later():
    """`attach(callback)` is an assignment from outside in disguise."""
    _report(_setters(), "pass it when the thing is made")
