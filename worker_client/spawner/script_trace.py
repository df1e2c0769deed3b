"""In which order does a script import torch and set what a load reads, through its own modules and functions too?

The trace follows what runs unconditionally: the top level of the script and of each own module that it imports there,
and the bodies of own functions called there. Code under an `if`, in a loop or after a `return` may not run: it, and
each own module that it imports, can prevent a load, but not request one.
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
        self.names: dict[str, list[tuple[str, str]]] = {}  # name -> what it may be: module, and name in it ("": itself)
        self.doubtful: set[str] = set()  # names bound by an import that may not run
        self._script_folder = script_folder
        self._folders: Folders | None = None

    def bind(self, name: str, *meanings: tuple[str, str], certain: bool) -> None:
        """Notes what an import binds. One that may not run leaves what the name stood for possible."""
        if certain:
            self.names[name] = []
            self.doubtful.discard(name)
        else:
            self.doubtful.add(name)
        self.names.setdefault(name, []).extend(meanings)

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
        self.late_objection: late_changes.Objection | None = None  # the same after it: no more modules are steps
        self.folders: list[str] = []  # put before the installed modules
        self.torch_in = ""  # the file that imports torch first; "": none does unconditionally
        self.imported: set[str] = set()  # all that the script and its own modules import unconditionally
        self.trees: list[ast.Module] = []
        self.doubtful_trees: list[ast.Module] = []  # of own modules that may not be imported
        self._sources = sources
        self._script_folder = script_folder
        self._files: dict[str, _File] = {}
        self._entered: set[tuple[_Function, bool]] = set()  # function bodies already traced, and whether as certain
        self._set: dict[str, str] = {}
        self._waiting: list[str] = []  # assignments since the last step, for the next one
        self._may_be_loaded = False  # torch or numpy, or a part, by an import that may not run
        self._traced: set[tuple[str, bool]] = set()  # own modules, and whether as certainly imported
        self._imports_deep = 0
        file = _File(script, script_folder)
        for parent in parents:
            self._import(parent, file, certain=True)
        self._files[script.name] = file
        self.trees.append(script.tree)
        self._run(script.tree.body, file, depth=0)

    def _run(self, body: list[ast.stmt], file: _File, *, depth: int, certain: bool = True) -> None:
        for statement in body:
            if isinstance(statement, _Function):
                continue  # Its body runs when it is called.
            if isinstance(statement, ast.ClassDef | ast.With | ast.AsyncWith):
                self._run(statement.body, file, depth=depth, certain=certain)
            elif isinstance(statement, ast.Try | ast.TryStar):
                self._try(statement, file, depth, certain=certain)
            elif isinstance(statement, ast.If) and _is_main_check(statement):
                runs = statement.body if file.source.name == "__main__" else statement.orelse
                self._run(runs, file, depth=depth, certain=certain)
            elif isinstance(statement, ast.If) and _is_for_types(statement):
                self._run(statement.orelse, file, depth=depth, certain=certain)
            else:
                self._take(statement, file, depth, certain=certain)
            if depth and any(isinstance(node, ast.Return) for node in _executed(statement)):
                if isinstance(statement, ast.Return):
                    return
                certain = False  # What follows may not be reached.

    def _try(self, statement: ast.Try | ast.TryStar, file: _File, depth: int, *, certain: bool) -> None:
        before = list(self._waiting)
        self._run(statement.body, file, depth=depth, certain=certain)
        if statement.handlers and self._waiting and self._waiting != before:
            # What follows finds the variable set only if nothing in the body failed before.
            self._object(late_changes.Objection.on(self._waiting[-1].partition("=")[0]), statement, file)
        handled = [each for handler in statement.handlers for each in handler.body]
        self._run([*handled, *statement.orelse, *statement.finalbody], file, depth=depth, certain=False)

    def _take(self, statement: ast.stmt, file: _File, depth: int, *, certain: bool) -> None:
        """Takes a statement that contains no others, or only others that may not run."""
        certain &= not isinstance(statement, ast.If | ast.For | ast.While | ast.Match | ast.AsyncFor)
        is_plain = certain and not self._may_be_loaded and isinstance(statement, ast.Assign | ast.Expr)
        assigned = late_changes.assignments(statement, file.folders.text) if is_plain else None
        if assigned is not None:
            self._assign(assigned)
            return
        self._look_for_objections(statement, file)
        for node in _executed(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import_all(node, file, certain=certain)
            elif isinstance(node, ast.Call):
                self._call(node, file, depth, certain=certain)

    def _assign(self, assigned: tuple[late_changes.Assignment, ...]) -> None:
        for name, value, is_default in assigned:
            there = self._set.get(name, os.environ.get(name))
            if late_changes.is_read_at_load(name) and there != value and not (is_default and there is not None):
                self._set[name] = value
                self._waiting.append(f"{name}={value}")

    def _look_for_objections(self, statement: ast.stmt, file: _File) -> None:
        def take_folder(call: ast.Call) -> bool:
            if not file.folders.take(call):
                return False
            folder = file.folders.found[-1]
            if not self.torch_in:
                self.folders.append(folder)
            self._sources.add_folder(folder, first=True)
            return True

        for node in _executed(statement):
            found = late_changes.objection(node, take_folder=take_folder)
            if found is not None:
                self._object(found, node, file)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.path.append" and len(node.args) == 1:
                folder = file.folders.text(node.args[0])
                if folder is not None:
                    self._sources.add_folder(os.path.abspath(folder), first=False)

    def _object(self, found: late_changes.Objection, node: ast.AST, file: _File) -> None:
        if self.torch_in:
            # One that is about more than a named variable stands for all.
            if self.late_objection is None or self.late_objection.variable:
                self.late_objection = found
        elif not self.objection:
            self.objection = f"{os.path.basename(file.source.path)}, line {getattr(node, 'lineno', 0)}, {found.text}"

    # --- imports and calls -----------------------------------------------------------------------------------------

    def _import_all(self, statement: ast.Import | ast.ImportFrom, file: _File, *, certain: bool) -> None:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                self._import(alias.name, file, certain=certain)
                top = alias.name.partition(".")[0]
                file.bind(alias.asname or top, (alias.name if alias.asname else top, ""), certain=certain)
            return
        module = _absolute(statement, file.source.package)
        if not module:
            return
        self._import(module, file, certain=certain)
        for alias in statement.names:
            inner = f"{module}.{alias.name}"
            if module == "worker_client" and certain:
                self.imported.add(inner)
            file.bind(alias.asname or alias.name, (module, alias.name), (inner, ""), certain=certain)
            if self._sources.has(module) and self._sources.has(inner):
                self._import(inner, file, certain=certain)

    def _import(self, name: str, file: _File, *, certain: bool) -> None:
        top = name.partition(".")[0]
        if self._sources.has(top) and top not in ("torch", "numpy"):
            self._import_own(name, certain=certain)
            return
        if certain:
            self.imported.add(name)
        if top in _PULL_IN_TORCH:
            name, top = "torch", "torch"
        if top not in ("torch", "numpy") or name in self.steps:
            return
        if not certain:
            self._may_be_loaded = True
            return
        if self.late_objection is None:
            self.steps += [*self._waiting, name]
            self._waiting.clear()
        if top == "torch" and not self.torch_in:
            self.torch_in = file.source.path

    def _import_own(self, name: str, *, certain: bool) -> None:
        """Traces an own module and the packages around it, each once: again if it was only a possible import before."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            module = ".".join(parts[:count])
            if {(module, True), (module, certain)} & self._traced:
                continue
            source = self._sources.module(module)
            if source is None:
                continue
            self._traced.add((module, certain))
            file = self._files.setdefault(module, _File(source, self._script_folder))
            (self.trees if certain else self.doubtful_trees).append(source.tree)
            if self._imports_deep < _IMPORTS_DEEP_MAX:
                self._imports_deep += 1
                self._run(source.tree.body, file, depth=0, certain=certain)
                self._imports_deep -= 1

    def _call(self, call: ast.Call, file: _File, depth: int, *, certain: bool) -> None:
        """Traces the body of an own function, or of each that the name may stand for."""
        match call.func:
            case ast.Name(id=name) if name in file.functions:
                self._enter(file.functions[name], file, depth, certain=certain)
                return
            case ast.Name(id=bound):
                meant = [each for each in file.names.get(bound, ()) if each[1]]
            case ast.Attribute(value=ast.Name(id=bound), attr=name):
                meant = [(module, name) for module, inner in file.names.get(bound, ()) if not inner]
            case _:
                return
        for module, name in meant:
            other = self._files.get(module)
            if other is not None and name in other.functions:
                self._enter(other.functions[name], other, depth, certain=certain and bound not in file.doubtful)

    def _enter(self, function: _Function, file: _File, depth: int, *, certain: bool) -> None:
        if depth < _CALLS_DEEP_MAX and (function, certain) not in self._entered:
            self._entered.add((function, certain))
            self._run(function.body, file, depth=depth + 1, certain=certain)


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
