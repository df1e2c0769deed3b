"""Which modules may be loaded before the workers are forked, and does anything in the script prevent that?

The source is read, never run: the script and, through its unconditional imports, its own modules.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from itertools import takewhile
from typing import NamedTuple

from holdfast_wire.spawner_settings import SpawnerSettings

from . import working_folder
from .late_changes import READ_BY_COMPILER
from .own_sources import OwnSources, UnreadableError
from .script_trace import Trace

# A script that builds one of these imports torch._dynamo, which takes longer than torch itself, in each rank.
_LOADS_DYNAMO = frozenset({"DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard"})
_LOADS_DYNAMO_PACKAGES = frozenset({"lightning", "pytorch_lightning", "accelerate", "deepspeed"})
_READ_BY_DYNAMO = rf"TORCHDYNAMO|TORCHINDUCTOR|TORCH_LOGS|TORCH_COMPILE|TORCH_TRACE|TRITON|{READ_BY_COMPILER}"
DYNAMO = "torch._dynamo"
# All that a wrapped call loads. Loaded in each rank, it would dirty 10 MiB of the memory that a fork shares.
_WRAPPER = ("worker_client.inprocess.wrap", "worker_client.channel")
_INSTALLED = ("site-packages", "dist-packages")


class Choice(NamedTuple):
    """What is loaded before workers are forked; `reason` is one sentence."""

    reason: str
    steps: tuple[str, ...] = ()  # modules to import and, between them, variables to set for the load (NAME=value)
    as_script: bool = False  # load them with the script's folder on sys.path: the user named them
    folders: tuple[str, ...] = ()  # that the script puts before the installed modules: they must hide none of those
    learns: tuple[str, ...] = ()  # to load ahead later, once the workers were seen to import torch

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(step for step in self.steps if "=" not in step)

    @property
    def variables(self) -> frozenset[str]:
        """Those set before torch is loaded."""
        first = takewhile(lambda step: step.partition(".")[0] != "torch", self.steps)
        return frozenset(step.partition("=")[0].lstrip("-") for step in first if "=" in step)


def is_of_torch(module: str) -> bool:
    """Returns whether it is torch or numpy, or a part of them; what they do when loaded is known."""
    return module.partition(".")[0] in ("torch", "numpy")


def choose(settings: SpawnerSettings) -> Choice:
    """Returns what to load for this job, from its settings and the source of its script."""
    if settings.preload == "none":
        return Choice(settings.decided or "workers are forked from a bare interpreter: preload is none")
    if settings.preload != "auto":
        named = tuple(name.strip() for name in settings.preload.split(",") if name.strip())
        return Choice(f"workers are forked with {', '.join(named)} loaded, as asked", named, as_script=True)
    if settings.learned:
        loaded = "workers are forked with torch loaded: those of an earlier cycle imported it"
        return Choice(loaded, settings.learned, folders=settings.learned_folders)
    path = source_path(settings)
    if not path:
        return _bare("the source of the script was not found")
    try:
        trace = _trace(settings, path)
    except UnreadableError as error:
        return _bare(str(error))
    except FileNotFoundError:  # of os.path.abspath and the like
        return _bare("the working folder was removed")
    except RecursionError:
        return _bare(f"{path} is nested too deeply")
    dynamo = (DYNAMO,) if _loads_dynamo(trace) else ()
    if not trace.torch_in:
        return _bare("neither the script nor a module of its own imports torch in any case", dynamo)
    if trace.objection:
        return _bare(f"{trace.objection}, above the import of torch", dynamo)
    where = "the script imports it" if trace.torch_in == path else f"{os.path.basename(trace.torch_in)} imports it"
    wrapper = _WRAPPER if any(f"{name}.".startswith("worker_client.inprocess.") for name in trace.imported) else ()
    return Choice(
        f"workers are forked with torch loaded: {where} in any case",
        (*trace.steps, *dynamo, *wrapper),
        folders=tuple(trace.folders),
    )


def _bare(reason: str, dynamo: tuple[str, ...] = ()) -> Choice:
    """Returns a choice that learns from the first workers what the source does not show."""
    return Choice(f"workers are forked from a bare interpreter: {reason}", learns=("torch", *dynamo))


def _trace(settings: SpawnerSettings, path: str) -> Trace:
    """Traces the script. Raises UnreadableError."""
    first = script_folder(settings)
    folders = [first, *(entry for entry in (settings.python_path or "").split(os.pathsep) if entry)]
    package, parents = "", tuple[str, ...]()
    if settings.entry == "module":
        name = settings.command[0]
        is_package = os.path.basename(path) == "__main__.py" and not name.endswith("__main__")
        package = name if is_package else name.rpartition(".")[0]
        parents = (package,) if package else ()
        root = _root_of(path, package)
        folders += [] if os.path.basename(root) in _INSTALLED else [root]
    sources = OwnSources([os.path.abspath(folder) for folder in folders if folder])
    return Trace(sources, sources.script(path, package), first, parents)


def _root_of(path: str, package: str) -> str:
    """Returns the folder that holds the outermost package of a module."""
    folder = os.path.dirname(os.path.abspath(path))
    for _ in package.split(".") if package else ():
        folder = os.path.dirname(folder)
    return folder


def source_path(settings: SpawnerSettings) -> str:
    """Returns the file that will be __main__; "" if that is unknown without running anything."""
    if not settings.command or settings.entry == "command":
        return ""
    name = settings.command[0]
    if settings.entry == "script":
        return os.path.join(name, "__main__.py") if os.path.isdir(name) else name
    for folder in ([] if _safe_path() else [working_folder.current()]) + sys.path:
        base = os.path.join(folder, *name.split("."))
        for path in (f"{base}.py", os.path.join(base, "__main__.py")):
            if os.path.isfile(path):
                return path
    return ""


def script_folder(settings: SpawnerSettings) -> str:
    """Returns the future sys.path[0]: the folder of the script, or the current one under -m; "" under -P."""
    if _safe_path() or not settings.command:
        return ""
    if settings.entry == "module":
        return working_folder.current()
    script = os.path.realpath(settings.command[0])
    return script if os.path.isdir(script) else os.path.dirname(script)


def _safe_path() -> bool:
    return bool(getattr(sys.flags, "safe_path", False))


def _loads_dynamo(trace: Trace) -> bool:
    """Returns whether the job's model wrapper imports torch._dynamo, and the job sets nothing that this would read."""
    if trace.late_objection is not None and not trace.late_objection.variable:
        return False
    wraps = False
    if any(_sets_for_dynamo(node) for tree in trace.doubtful_trees for node in ast.walk(tree)):
        return False
    for node in (node for tree in trace.trees for node in ast.walk(tree)):
        if _sets_for_dynamo(node):
            return False
        if isinstance(node, ast.Name | ast.Attribute):
            wraps |= (node.id if isinstance(node, ast.Name) else node.attr) in _LOADS_DYNAMO
        elif isinstance(node, ast.Import):
            wraps |= any(alias.name.partition(".")[0] in _LOADS_DYNAMO_PACKAGES for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            wraps |= (node.module or "").partition(".")[0] in _LOADS_DYNAMO_PACKAGES
    return wraps


def _sets_for_dynamo(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.match(_READ_BY_DYNAMO, node.value) is not None
    )
