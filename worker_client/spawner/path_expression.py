"""Which folder does a script put before the installed modules by `sys.path.insert`?

The expression is read, never run: this module knows the few forms in which scripts name a folder near their own file.
"""

from __future__ import annotations

import ast
import os

_NAMES = {"os.pardir": os.pardir, "os.curdir": os.curdir, "os.sep": os.sep, "os.path.sep": os.sep}
_PATH_FUNCTIONS = {
    "dirname": os.path.dirname,
    "basename": os.path.basename,
    "normpath": os.path.normpath,
    "abspath": os.path.abspath,
    "realpath": os.path.realpath,
    "expanduser": os.path.expanduser,
}
_MODULES = frozenset({"os.path", "path", "osp"})
_AS_THEY_ARE = frozenset({"str", "os.fspath"})
_PATHS = frozenset({"Path", "pathlib.Path", "PurePath", "pathlib.PurePath"})
_WORKING_FOLDER = frozenset({"os.getcwd", "getcwd", "Path.cwd", "pathlib.Path.cwd"})
_MAX_DEPTH = 50


class Folders:
    """The folders found so far, and what the names in the script stand for."""

    def __init__(self, tree: ast.Module, path: str, script_folder: str) -> None:
        """`path` is the script's file, `script_folder` its first entry of sys.path."""
        self.found: list[str] = []
        self._file = os.path.abspath(path)
        self._script_folder = script_folder
        self._values: dict[str, ast.expr] = {}
        self._imported: set[str] = set()  # from os.path
        self._moves = False  # whether the script changes its working folder
        bound: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound.append(node.id)
            elif isinstance(node, ast.arg):
                bound.append(node.arg)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self._values[node.targets[0].id] = node.value
            elif isinstance(node, ast.Call):
                self._moves |= ast.unparse(node.func) in ("os.chdir", "chdir", "os.fchdir")
            elif isinstance(node, ast.ImportFrom) and node.module == "os.path":
                self._imported.update(alias.name for alias in node.names if not alias.asname)
        self._once = {name for name in self._values if bound.count(name) == 1}

    def take(self, call: ast.Call) -> bool:
        """Notes the folder that `sys.path.insert(index, folder)` inserts; returns False if it is unknown."""
        if len(call.args) != 2 or call.keywords:
            return False
        folder = self._value(call.args[1], 0)
        if folder is None or (self._moves and not os.path.isabs(folder)):
            return False
        self.found.append(os.path.abspath(folder))
        return True

    def text(self, node: ast.expr) -> str | None:
        """Returns the text that `node` stands for; None if unknown."""
        return self._value(node, 0)

    def _value(self, node: ast.expr, depth: int) -> str | None:
        """Returns the text that `node` stands for; None if unknown."""
        if depth > _MAX_DEPTH:
            return None
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id="__file__"):
                return self._file
            case ast.Name(id=name):
                return self._value(self._values[name], depth + 1) if name in self._once else None
            case ast.Call():
                return self._call(node, depth + 1)
            case ast.BinOp(left=left, op=ast.Add() | ast.Div() as op, right=right):
                parts = self._value(left, depth + 1), self._value(right, depth + 1)
                if parts[0] is None or parts[1] is None:
                    return None
                return os.path.join(parts[0], parts[1]) if isinstance(op, ast.Div) else parts[0] + parts[1]
            case ast.Attribute(value=value, attr="parent"):
                return self._parent(self._value(value, depth + 1), 1)
            case ast.Subscript(value=ast.Attribute(value=value, attr="parents"), slice=ast.Constant(value=int(count))):
                return self._parent(self._value(value, depth + 1), count + 1) if count >= 0 else None
            case ast.Attribute():
                return _NAMES.get(ast.unparse(node))
            case ast.Subscript():
                return self._script_folder or None if ast.unparse(node) == "sys.path[0]" else None
            case _:
                return None

    def _call(self, call: ast.Call, depth: int) -> str | None:
        name = ast.unparse(call.func)
        if call.keywords:
            return None
        if name in _WORKING_FOLDER and not call.args:
            return None if self._moves else os.getcwd()
        if isinstance(call.func, ast.Attribute) and not call.args and call.func.attr in ("resolve", "absolute"):
            value = self._value(call.func.value, depth)
            return None if value is None else self._absolute(value, resolve=call.func.attr == "resolve")
        values = [self._value(argument, depth) for argument in call.args]
        texts = [value for value in values if value is not None]
        if not texts or len(texts) != len(values):
            return None
        if name in _AS_THEY_ARE and len(texts) == 1:
            return texts[0]
        if name in _PATHS:
            return os.path.join(*texts).rstrip("/") or "/"
        module, _, function = name.rpartition(".")
        if module not in _MODULES and (module or function not in self._imported):
            return None
        if function == "join":
            return os.path.join(*texts)
        if function not in _PATH_FUNCTIONS or len(texts) != 1:
            return None
        if self._moves and function in ("abspath", "realpath") and not os.path.isabs(texts[0]):
            return None
        return _PATH_FUNCTIONS[function](texts[0])

    def _absolute(self, value: str, *, resolve: bool) -> str | None:
        if self._moves and not os.path.isabs(value):
            return None
        return os.path.realpath(value) if resolve else os.path.abspath(value)

    @staticmethod
    def _parent(value: str | None, count: int) -> str | None:
        """Returns the parent as pathlib does, which leaves `..` unchanged."""
        for _ in range(count):
            value = os.path.dirname(value) if value else value
        return value
