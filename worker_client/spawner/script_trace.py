"""In which order does a script import torch and set what a load reads, through its own modules and functions too?

The trace follows what runs unconditionally: the top level of the script and of each own module that it imports there,
and the bodies of own functions called there. Code under an `if`, in a loop or after a `return` may not run: it can
prevent a load, but not request one.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from . import late_changes
from .own_sources import OwnSources, Source
from .path_expression import Folders

# Packages of which every import of the package itself imports torch.
_PULL_IN_TORCH = frozenset({"torchvision", "torchaudio", "accelerate", "lightning", "pytorch_lightning", "deepspeed"})
_CALLS_DEEP_MAX = 20
_IMPORTS_DEEP_MAX = 50
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _File:
    """One source and what its names stand for, as far as traced."""

    def __init__(self, source: Source, script_folder: str) -> None:
        self.source = source
        self.functions = {each.name: each for each in source.tree.body if isinstance(each, _Function)}
        self.from_modules: dict[str, tuple[str, str]] = {}  # name -> own module, name in it
        self.modules: dict[str, str] = {}  # name -> own module
        self._script_folder = script_folder
        self._folders: Folders | None = None

    @property
    def folders(self) -> Folders:
        """Returns the folders, created late: most files need none."""
        if self._folders is None:
            self._folders = Folders(self.source.tree, self.source.path, self._script_folder)
        return self._folders


class Trace:
    """The findings. `steps`: modules of torch and numpy and assignments `NAME=value`, in order of execution."""

    def __init__(self, sources: OwnSources, script: Source, script_folder: str, parents: tuple[str, ...] = ()) -> None:
        """`parents`: the packages around a script that is run by `-m`; they are imported before it."""
        self.steps: list[str] = []
        self.objection = ""  # a line before the first import of torch that would be too late after a load
        self.folders: list[str] = []  # put before the installed modules
        self.torch_in = ""  # the file that imports torch first; "": none does unconditionally
        self.imported: set[str] = set()  # all that the script and its own modules import unconditionally
        self.trees: list[ast.Module] = []
        self._sources = sources
        self._script_folder = script_folder
        self._files: dict[str, _File] = {}
        self._entered: set[tuple[_Function, bool]] = set()  # function bodies already traced, and whether as certain
        self._set: dict[str, str] = {}
        self._imports_deep = 0
        file = _File(script, script_folder)
        for parent in parents:
            self._import(parent, file)
        self._files[script.name] = file
        self.trees.append(script.tree)
        self._run(script.tree.body, file, depth=0)

    def _run(self, body: list[ast.stmt], file: _File, *, depth: int, certain: bool = True) -> None:
        for statement in body:
            if isinstance(statement, _Function):
                continue  # Its body runs when it is called.
            if isinstance(statement, ast.ClassDef):
                self._run(statement.body, file, depth=depth, certain=certain)
            elif isinstance(statement, ast.Try | ast.With):
                self._run(statement.body, file, depth=depth, certain=certain)
                if isinstance(statement, ast.Try):
                    handled = [each for handler in statement.handlers for each in handler.body]
                    rest = [*handled, *statement.orelse, *statement.finalbody]
                    self._run(rest, file, depth=depth, certain=False)
            elif isinstance(statement, ast.If) and _is_main_check(statement):
                if file.source.name == "__main__":
                    self._run(statement.body, file, depth=depth, certain=certain)
            elif not (isinstance(statement, ast.If) and _is_for_types(statement)):
                self._take(statement, file, depth, certain=certain)
            if depth and any(isinstance(node, ast.Return) for node in _executed(statement)):
                if isinstance(statement, ast.Return):
                    return
                certain = False  # What follows may not be reached.

    def _take(self, statement: ast.stmt, file: _File, depth: int, *, certain: bool) -> None:
        """Takes a statement that contains no others, or only others that may not run."""
        if isinstance(statement, ast.Import | ast.ImportFrom):
            if certain:
                self._import_all(statement, file)
            return
        certain &= not isinstance(statement, ast.If | ast.For | ast.While | ast.Match | ast.AsyncFor)
        if not self.torch_in:
            is_plain = certain and isinstance(statement, ast.Assign | ast.Expr)
            assigned = late_changes.assignments(statement, file.folders.text) if is_plain else None
            if assigned is not None:
                self._assign(assigned)
                return
            self._look_for_objections(statement, file)
        for node in _executed(statement):
            if isinstance(node, ast.Call):
                self._call(node, file, depth, certain=certain)

    def _assign(self, assigned: tuple[late_changes.Assignment, ...]) -> None:
        for name, value, is_default in assigned:
            there = self._set.get(name, os.environ.get(name))
            if late_changes.is_read_at_load(name) and there != value and not (is_default and there is not None):
                self._set[name] = value
                self.steps.append(f"{name}={value}")

    def _look_for_objections(self, statement: ast.stmt, file: _File) -> None:
        def take_folder(call: ast.Call) -> bool:
            if not file.folders.take(call):
                return False
            folder = file.folders.found[-1]
            self.folders.append(folder)
            self._sources.add_folder(folder, first=True)
            return True

        for node in _executed(statement):
            text = late_changes.objection(node, take_folder=take_folder)
            if text and not self.objection:
                self.objection = f"{os.path.basename(file.source.path)}, line {getattr(node, 'lineno', 0)}, {text}"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.path.append" and len(node.args) == 1:
                folder = file.folders.text(node.args[0])
                if folder is not None:
                    self._sources.add_folder(os.path.abspath(folder), first=False)

    # --- imports and calls -----------------------------------------------------------------------------------------

    def _import_all(self, statement: ast.Import | ast.ImportFrom, file: _File) -> None:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                self._import(alias.name, file)
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                file.modules[alias.asname or bound] = bound
            return
        module = _absolute(statement, file.source.package)
        if not module:
            return
        self._import(module, file)
        for alias in statement.names:
            inner = f"{module}.{alias.name}"
            file.from_modules[alias.asname or alias.name] = (module, alias.name)
            if module == "worker_client":
                self.imported.add(inner)
            if self._sources.has(module) and self._sources.has(inner):
                file.modules[alias.asname or alias.name] = inner
                self._import(inner, file)

    def _import(self, name: str, file: _File) -> None:
        top = name.partition(".")[0]
        if self._sources.has(top) and top not in ("torch", "numpy"):
            self._import_own(name)
            return
        self.imported.add(name)
        if top in _PULL_IN_TORCH:
            name, top = "torch", "torch"
        if top in ("torch", "numpy") and name not in self.steps:
            self.steps.append(name)
        if top == "torch" and not self.torch_in:
            self.torch_in = file.source.path

    def _import_own(self, name: str) -> None:
        """Traces an own module and the packages around it, each once."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            module = ".".join(parts[:count])
            if module in self._files:
                continue
            source = self._sources.module(module)
            if source is None:
                continue
            file = _File(source, self._script_folder)
            self._files[module] = file
            self.trees.append(source.tree)
            if self._imports_deep < _IMPORTS_DEEP_MAX:
                self._imports_deep += 1
                self._run(source.tree.body, file, depth=0)
                self._imports_deep -= 1

    def _call(self, call: ast.Call, file: _File, depth: int, *, certain: bool) -> None:
        """Traces the body of an own function, if it is known which one is called."""
        found = self._function(call.func, file)
        if found is None or depth >= _CALLS_DEEP_MAX or (found[0], certain) in self._entered:
            return
        self._entered.add((found[0], certain))
        self._run(found[0].body, found[1], depth=depth + 1, certain=certain)

    def _function(self, called: ast.expr, file: _File) -> tuple[_Function, _File] | None:
        match called:
            case ast.Name(id=name) if name in file.functions:
                return file.functions[name], file
            case ast.Name(id=name) if name in file.from_modules:
                module, name = file.from_modules[name]
            case ast.Attribute(value=ast.Name(id=alias), attr=name) if alias in file.modules:
                module = file.modules[alias]
            case _:
                return None
        other = self._files.get(module)
        return (other.functions[name], other) if other is not None and name in other.functions else None


def _executed(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yields all nodes of a statement except the bodies of functions in it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield node
        waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _absolute(statement: ast.ImportFrom, package: str) -> str:
    """Returns the module that it names; "" if a relative import leads out of every package."""
    if not statement.level:
        return statement.module or ""
    parts = package.split(".") if package else []
    kept = parts[: len(parts) - statement.level + 1]
    if not kept or statement.level > len(parts):
        return ""
    return ".".join([*kept, *([statement.module] if statement.module else [])])


def _is_main_check(statement: ast.If) -> bool:
    return ast.unparse(statement.test).replace('"', "'") in ("__name__ == '__main__'", "'__main__' == __name__")


def _is_for_types(statement: ast.If) -> bool:
    return ast.unparse(statement.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
