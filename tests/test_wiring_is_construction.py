"""What a thing needs it gets when it is made, and it is never told later whom to call.

So no attribute that holds a callback is assigned from outside its class, none starts as a stub that waits to be
replaced, and no method exists only to set one. Somebody who merely wants to hear of something follows announcements,
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

# What is left: it only shrinks. "file: attribute".
LATE = frozenset(
    {
        # What is kept of the connections to other nodes, and when messages may go out.
        "supervisor/edges/peers/election/elected_peers.py: read",
        "supervisor/edges/peers/embedded/cluster_peers.py: read",
        "supervisor/edges/peers/embedded/cluster_peers.py: read_changed",
        "supervisor/edges/peers/embedded/peers_of_jobs.py: keep",
        # Who answers the questions of other nodes.
        "supervisor/edges/peers/embedded/peers_of_jobs.py: _handler",
        "supervisor/edges/peers/questions/switchboard.py: _handler",
        # Who tells the leader what happens on this node, up to the end of the job.
        "supervisor/edges/peers/embedded/peers_of_jobs.py: on_closed",
        "supervisor/edges/peers/embedded/peers_of_jobs.py: tell_last_news",
        "supervisor/engine/event_publisher.py: on_changed",
        "supervisor/engine/event_publisher.py: on_recorded",
        "supervisor/wiring/shared_jobs.py: on_changed",
        "supervisor/wiring/shared_jobs.py: on_closed",
        "supervisor/wiring/shared_jobs.py: on_recorded",
        "supervisor/wiring/shared_jobs.py: tell_last_news",
        # How a report is made, and which events wait until they are kept.
        "supervisor/engine/event_publisher.py: _is_kept",
        "supervisor/engine/event_publisher.py: _keep_soon",
        "supervisor/engine/event_publisher.py: _report",
        # Who adopts the ranks that another launcher starts.
        "supervisor/edges/workers/channel/worker_admission.py: met",
        # The one line of this process's terminal.
        "supervisor/edges/machine/own_process/waiting_line.py: before_writing",
        # The worker's side.
        "worker_client/channel.py: _find",
        "worker_client/inprocess/coordinating/connection.py: _supervised_by",
    }
)


@cache
def _trees() -> dict[str, ast.Module]:
    paths = (path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name)
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


@cache
def _names_of_callables() -> frozenset[str]:
    """Returns "Callable", and the names of the types that are one."""
    found = {"Callable"}
    for tree in _trees().values():
        for node in tree.body:
            if isinstance(node, ast.Assign) and re.match(r"Callable\[", ast.unparse(node.value)):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


def _is_callable(annotation: ast.expr | None) -> bool:
    """Returns whether the type is a callable, perhaps or None; a container of callables is none."""
    match annotation:
        case ast.Name(name):
            return name in _names_of_callables()
        case ast.Subscript(ast.Name(name)):
            return name in _names_of_callables()
        case ast.BinOp(left, ast.BitOr(), right):
            return _is_callable(left) or _is_callable(right)
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


def _callbacks_of(of: ast.ClassDef) -> set[str]:
    """Returns the attributes that hold a callback: as annotated, or set to a parameter that is one, or to a lambda."""
    found = {
        node.target.id
        for node in of.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_callable(node.annotation)
    }
    for function in _functions(of):
        parameters = _parameters(function)
        for node in ast.walk(function):
            for target, value in _assigned(node):
                attribute = _own_attribute(target)
                is_one = isinstance(node, ast.AnnAssign) and _is_callable(node.annotation)
                is_one |= isinstance(value, ast.Lambda)
                is_one |= isinstance(value, ast.Name) and _is_callable(parameters.get(value.id))
                if attribute is not None and is_one:
                    found.add(attribute)
    return found


@cache
def _callbacks() -> dict[str, frozenset[str]]:
    """Returns the attributes that hold a callback, each with the classes that have it."""
    found: dict[str, set[str]] = {}
    for _, of in _classes():
        for attribute in _callbacks_of(of):
            found.setdefault(attribute, set()).add(of.name)
    for file, tree in _trees().items():
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_callable(node.annotation):
                found.setdefault(node.target.id, set()).add(file)
    return {attribute: frozenset(classes) for attribute, classes in found.items()}


def _plain_attributes(tree: ast.Module) -> set[str]:
    """Returns the attributes of the file's own classes that hold no callback: by that name, the file means these."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    pairs = (pair for of in classes for node in ast.walk(of) for pair in _assigned(node))
    own = {_own_attribute(target) for target, _ in pairs} - {None}
    return {str(each) for each in own}.difference(*map(_callbacks_of, classes))


def _assigned_from_outside() -> Iterator[tuple[str, str]]:
    for file, tree in _trees().items():
        names = _callbacks().keys() - _plain_attributes(tree)
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
                is_one = isinstance(node, ast.AnnAssign) and _is_callable(node.annotation)
                for target, value in _assigned(node):
                    attribute = _own_attribute(target)
                    is_stub = isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in functions)
                    if attribute is not None and is_one and is_stub:
                        yield f"{file}: {attribute}", f"of {of.name}"


def _setters() -> Iterator[tuple[str, str]]:
    for file, of in _classes():
        callbacks = _callbacks_of(of)
        for function in _functions(of):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            if function.name in MAKES or not body or not all(isinstance(node, ast.Assign) for node in body):
                continue
            parameters = set(_parameters(function)) - set(OWN)
            for target, value in (pair for node in body for pair in _assigned(node)):
                attribute = _own_attribute(target)
                if attribute in callbacks and isinstance(value, ast.Name) and value.id in parameters:
                    yield f"{file}: {attribute}", f"by {of.name}.{function.name}"


def _report(found: Iterator[tuple[str, str]], rule: str) -> None:
    new = sorted(f"{where} ({what})" for where, what in found if where not in LATE)
    assert not new, f"{rule}:\n  " + "\n  ".join(new)


def test_no_callback_is_assigned_from_outside_its_class():
    _report(_assigned_from_outside(), "pass it when the thing is made, or let the thing post an event")


def test_no_stub_waits_to_be_replaced():
    _report(
        _stubs(), "a callback that a class has from the start is a method; else it is passed when the thing is made"
    )


def test_no_method_only_says_whom_to_call():
    """`attach(callback)` is an assignment from outside in disguise."""
    _report(_setters(), "pass it when the thing is made")


def test_the_list_of_what_is_left_names_nothing_that_is_mended():
    found = {where for each in (_assigned_from_outside(), _stubs(), _setters()) for where, _ in each}
    assert not sorted(LATE - found)
