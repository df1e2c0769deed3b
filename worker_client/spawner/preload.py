"""Which modules may be loaded before the workers are forked, and is there something in the script that forbids it?

The source is read, never run. Only the script itself is followed: what its own modules import is not looked at.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from holdfast_wire.spawner_settings import SpawnerSettings

from .path_expression import Folders

# Variables that torch, a BLAS or OpenMP runtime, the C library or the interpreter reads when it is loaded.
_READ_AT_LOAD = (
    r"(OMP|MKL|KMP|GOMP|OPENBLAS|GOTO|BLIS|VECLIB|NUMEXPR|ATEN|C10|TORCH|TORCHINDUCTOR|TRITON|PYTORCH|CUDA|HIP|ROCR|PYTHON)_?"
    r"|LD_PRELOAD$|LD_LIBRARY_PATH$|GLIBC_TUNABLES$|MALLOC_|PROTOCOL_BUFFERS_"
)
# Calls that change what a later import does, or how many threads it makes.
_FORBIDDEN_CALLS = {
    "os.sched_setaffinity": "binds the process to CPUs",
    "site.addsitedir": "adds a folder of modules",
    "sys.setdlopenflags": "changes how libraries are loaded",
}
_WRITES = {"setdefault", "update", "pop", "clear", "__setitem__", "popitem"}
# Packages of which every import of the package itself imports torch.
_PULL_IN_TORCH = frozenset({"torchvision", "torchaudio", "accelerate", "lightning", "pytorch_lightning", "deepspeed"})
# Whoever builds one of these imports torch._dynamo, which takes longer than torch itself, in each rank.
_LOADS_DYNAMO = frozenset({"DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard"})
_LOADS_DYNAMO_PACKAGES = frozenset({"lightning", "pytorch_lightning", "accelerate", "deepspeed"})
_READ_BY_DYNAMO = r"TORCHDYNAMO|TORCHINDUCTOR|TORCH_LOGS|TORCH_COMPILE|TORCH_TRACE|TRITON"
DYNAMO = "torch._dynamo"
# All that a wrapped call loads: loaded in each rank it dirties 10 MiB of the memory that a fork shares.
_WRAPPER = ("worker_client.inprocess.wrap", "worker_client.channel")
_MAX_SOURCE_BYTES = 4 * 1024 * 1024


class Choice(NamedTuple):
    """`method` "fork" with the modules to load first, or "exec"; `reason` is one sentence."""

    method: str
    reason: str
    modules: tuple[str, ...] = ()
    as_script: bool = False  # load them with the script's folder on sys.path: the user named them
    folders: tuple[str, ...] = ()  # that the script puts before the installed modules: they must hide none of those
    learns: tuple[str, ...] = ()  # to load ahead later, once the workers were seen to import torch
    is_unread: bool = False  # its source could not be parsed


def choose(settings: SpawnerSettings) -> Choice:
    """What to do for this job, from its settings and the source of its script."""
    if settings.preload == "none":
        return Choice("fork", settings.decided or "workers are forked from a bare interpreter: preload is none")
    if settings.preload != "auto":
        named = tuple(name.strip() for name in settings.preload.split(",") if name.strip())
        return Choice("fork", f"workers are forked with {', '.join(named)} loaded, as asked", named, as_script=True)
    if settings.learned:
        loaded = "workers are forked with torch loaded: those of an earlier cycle imported it"
        return Choice("fork", loaded, settings.learned, folders=settings.learned_folders)
    path = source_path(settings)
    if not path:
        return _bare("the source of the script was not found")
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read(_MAX_SOURCE_BYTES), filename=path)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _bare(f"{path} cannot be read ({error})")._replace(is_unread=True)
    modules, torch_line = _torch_imports(tree)
    dynamo = (DYNAMO,) if _loads_dynamo(tree) else ()
    if not modules:
        return _bare("the script does not import torch at its top", dynamo)
    folders = Folders(tree, path, script_folder(settings))
    objection = _objection(tree, torch_line, folders)
    if objection:
        return Choice("exec", f"workers are executed: {os.path.basename(path)}, {objection}, above the import of torch")
    reason = "workers are forked with torch loaded: the script imports it at its top"
    wrapper = _WRAPPER if _imports_wrapper(tree) else ()
    return Choice("fork", reason, (*modules, *dynamo, *wrapper), folders=tuple(folders.found))


def _bare(reason: str, dynamo: tuple[str, ...] = ()) -> Choice:
    """What the source did not tell is learned from the first workers."""
    return Choice("fork", f"workers are forked from a bare interpreter: {reason}", learns=("torch", *dynamo))


def is_read_at_load(name: str) -> bool:
    """Whether torch, or what it loads, reads this variable when it is loaded."""
    return re.match(_READ_AT_LOAD, name) is not None


def source_path(settings: SpawnerSettings) -> str:
    """The file that will be __main__; "" where it can't be told without running something."""
    if not settings.command or settings.entry == "command":
        return ""
    name = settings.command[0]
    if settings.entry == "script":
        return os.path.join(name, "__main__.py") if os.path.isdir(name) else name
    for folder in ([] if _safe_path() else [os.getcwd()]) + sys.path:
        base = os.path.join(folder, *name.split("."))
        for path in (f"{base}.py", os.path.join(base, "__main__.py")):
            if os.path.isfile(path):
                return path
    return ""


def script_folder(settings: SpawnerSettings) -> str:
    """What will be sys.path[0]: the folder of the script, or the current one under -m; "" under -P."""
    if _safe_path() or not settings.command:
        return ""
    if settings.entry == "module":
        return os.getcwd()
    script = os.path.realpath(settings.command[0])
    return script if os.path.isdir(script) else os.path.dirname(script)


def _safe_path() -> bool:
    return bool(getattr(sys.flags, "safe_path", False))


def _torch_imports(tree: ast.Module) -> tuple[tuple[str, ...], int]:
    """(modules of torch and numpy that are imported in any case, in that order; line of the first torch)."""
    modules: dict[str, None] = {}
    torch_line = 0
    for statement in _always_run(tree.body):
        for name, line in _imported(statement):
            top = name.partition(".")[0]
            if top in _PULL_IN_TORCH:
                name, top = "torch", "torch"
            if top in ("torch", "numpy"):
                modules[name] = None
            if top == "torch" and not torch_line:
                torch_line = line
    return (tuple(modules) if torch_line else ()), torch_line


def _loads_dynamo(tree: ast.Module) -> bool:
    """Whether the script wraps its model in what imports torch._dynamo, and sets nothing that one would read then."""
    wraps = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(_READ_BY_DYNAMO, node.value):
            return False
        if isinstance(node, ast.Name | ast.Attribute):
            wraps |= (node.id if isinstance(node, ast.Name) else node.attr) in _LOADS_DYNAMO
        elif isinstance(node, ast.Import | ast.ImportFrom):
            wraps |= any(name.partition(".")[0] in _LOADS_DYNAMO_PACKAGES for name, _ in _imported(node))
    return wraps


def _imports_wrapper(tree: ast.Module) -> bool:
    """Whether the script imports the in-process restart in any case."""
    for statement in _always_run(tree.body):
        names = [name for name, _ in _imported(statement)]
        if isinstance(statement, ast.ImportFrom) and names == ["worker_client"]:
            names = [f"worker_client.{alias.name}" for alias in statement.names]
        if any(f"{name}.".startswith("worker_client.inprocess.") for name in names):
            return True
    return False


def _always_run(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements at the top level, with those inside `if __name__ == "__main__"`, `try` and `with`."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.Try | ast.With) or (isinstance(statement, ast.If) and _is_main_check(statement)):
            yield from _always_run(statement.body)


def _is_main_check(statement: ast.If) -> bool:
    return ast.unparse(statement.test).replace('"', "'") in ("__name__ == '__main__'", "'__main__' == __name__")


def _imported(statement: ast.stmt) -> Iterator[tuple[str, int]]:
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.name, statement.lineno
    elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        yield statement.module, statement.lineno


def _objection(tree: ast.Module, torch_line: int, folders: Folders) -> str:
    """The first thing above `torch_line` that would come too late after a preload; "" if there is none.

    `folders` gets those that are put before the installed modules there.
    """
    found = [
        (line, text)
        for node in ast.walk(tree)
        if (line := getattr(node, "lineno", torch_line)) < torch_line and (text := _late(node, folders))
    ]
    return min(found)[1] if found else ""


def _late(node: ast.AST, folders: Folders) -> str:
    """How `node` changes what a load reads; "" where it does not."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
        for target in targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                return _on_variable(node.lineno, [target.slice])
            if _is_environ(target):
                return f"line {node.lineno}, changes os.environ as a whole"
            if ast.unparse(target) in ("sys.path", "sys.path[:]") and isinstance(node, ast.Assign):
                return f"line {node.lineno}, replaces sys.path"
    if not isinstance(node, ast.Call):
        return ""
    name = ast.unparse(node.func)
    if name == "sys.path.insert" and not folders.take(node):
        return f"line {node.lineno}, puts a folder that is computed before the installed modules"
    if name in _FORBIDDEN_CALLS:
        return f"line {node.lineno}, {_FORBIDDEN_CALLS[name]}"
    if name in ("os.putenv", "putenv", "os.unsetenv", "unsetenv"):
        return _on_variable(node.lineno, node.args[:1])
    if isinstance(node.func, ast.Attribute) and _is_environ(node.func.value) and node.func.attr in _WRITES:
        keys = _update_keys(node) if node.func.attr == "update" else node.args[:1]
        return _on_variable(node.lineno, keys)
    return ""


def _is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ", "os.environb")


def _update_keys(call: ast.Call) -> list[ast.expr | None]:
    keys: list[ast.expr | None] = [ast.Constant(word.arg) if word.arg else None for word in call.keywords]
    for argument in call.args:
        keys.extend(argument.keys if isinstance(argument, ast.Dict) else [None])
    return keys


def _on_variable(line: int, keys: list[ast.expr] | list[ast.expr | None]) -> str:
    for key in keys:
        if not isinstance(key, ast.Constant):
            return f"line {line}, changes an environment variable whose name is computed"
        name = os.fsdecode(key.value) if isinstance(key.value, bytes) else str(key.value)
        if is_read_at_load(name):
            return f"line {line}, changes {name}"
    return ""
