"""Can the job's command be run at all? A mistake in it is reported before any worker starts, and is never retried.

Only certain failures are refused: if the interpreter might still succeed, it may try.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
from importlib.machinery import ModuleSpec
from typing import NamedTuple

from holdfast_wire.spawner_settings import SpawnerSettings

from . import preload, working_folder

NOT_THERE = 2  # a usage error: the command line names something that can't be run
TRY_AGAIN = 75  # a limit is reached
CANNOT_BE_PARSED = 1  # the job has failed, as it would by itself
_SOURCE_BYTES_MAX = 4 * 1024 * 1024
_LINE_CHARACTERS_MAX = 100
_FIRST_LINE_BYTES_MAX = 255  # of a script, as the kernel reads it
_NO_FORMAT = "it is not a program, and its first line names no interpreter; add one such as #!/bin/sh"


class Refusal(NamedTuple):
    """Why the command can't run. `reason` is the sentence for people; the job ends with the code."""

    reason: str
    exit_code: int


def refusal(settings: SpawnerSettings, *, source: str, sees_modules: bool = True) -> Refusal | None:
    """Returns why the command can't be run; None if it can, or if unknown. Runs nothing of it.

    `source`: the file to check for syntax errors; "": already done. `sees_modules`: this interpreter has the workers'
    module path.
    """
    if not settings.command or settings.command[0] == "-":
        return None
    name = settings.command[0]
    match settings.entry:
        case "module":
            why = _why_no_module(name, settings.python) if sees_modules else ""
            name = f"-m {name}"
        case "command":
            why = _why_no_program(name)
        case _:
            why = _why_no_script(name)
    if why:
        return Refusal(f"cannot run {name}: {why}", NOT_THERE)
    missing = _missing_modules(settings) if sees_modules else []
    if missing:
        names = ", ".join(missing)
        why = f"{settings.python} finds no such module; correct --preload, or install it there"
        return Refusal(f"cannot load {names} ahead: {why}", NOT_THERE)
    if why := _why_not_parsed(source) if source else "":
        return Refusal(f"cannot run {name}: {why}", CANNOT_BE_PARSED)
    return _unwritable(settings.log_dir) if settings.log_dir else None


def _unwritable(log_dir: str) -> Refusal | None:
    """Makes the folder for logs. Returns why nothing can be written there."""
    try:
        os.makedirs(log_dir, mode=0o700, exist_ok=True)
        if os.access(log_dir, os.W_OK | os.X_OK):
            return None
        why = "it is read-only here" if os.access(log_dir, os.R_OK) else f"user id {os.getuid()} may not write there"
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Refusal(f"cannot keep logs in {log_dir}: {error.strerror}; free space on that disk", TRY_AGAIN)
        why = error.strerror
    return Refusal(f"cannot keep logs in {log_dir}: {why}; choose another --log-dir", NOT_THERE)


def _why_no_script(path: str) -> str:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        where = "" if os.path.isabs(path) else f" in {working_folder.current()}"
        return f"there is no such file{where} on node {os.uname().nodename}; check the path"
    except (OSError, ValueError) as error:
        return f"{getattr(error, 'strerror', None) or error}; check the path"
    if stat.S_ISDIR(found.st_mode):
        if os.path.exists(os.path.join(path, "__main__.py")):
            return ""
        return "it is a directory without a __main__.py; name the script in it"
    if stat.S_ISREG(found.st_mode) and not os.access(path, os.R_OK):
        return f"user id {os.getuid()} may not read it; change its permissions"
    return ""


def _why_no_program(name: str) -> str:
    if os.sep in name:
        if not os.path.exists(name):
            return "there is no such program; check the path"
        if os.path.isdir(name):
            return "it is a directory; name the program in it"
        if not os.access(name, os.X_OK):
            return "it is not executable; make it so with chmod +x"
        return _why_not_executed(name)
    paths = [os.path.join(folder, name) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    found = [path for path in paths if os.access(path, os.X_OK) and not os.path.isdir(path)]
    if not found:
        return "no folder in PATH has such a program; check its name"
    whys = [_why_not_executed(path) for path in found]
    return whys[0] if all(whys) else ""  # A program that can't be started leaves its place to the next in PATH.


def _why_not_executed(path: str) -> str:
    """Returns why the kernel starts neither this file nor the interpreter in its first line; "" if it may."""
    try:
        with open(path, "rb") as file:
            start = file.read(_FIRST_LINE_BYTES_MAX)
    except OSError:  # It may be started without being read.
        return ""
    line, end, _ = start.partition(b"\n")
    if not line.startswith(b"#!"):
        is_text = b"\0" not in start
        return _NO_FORMAT if is_text and _has_unknown_format(path) else ""
    if not end:
        return ""
    named = os.fsdecode(line[2:].replace(b"\t", b" ").lstrip(b" ").partition(b" ")[0])
    if not named or os.path.exists(named):
        return ""
    shown = named if named.isprintable() else ascii(named)
    why = f"its first line names the interpreter {shown}, which is not there"
    return f"{why}; " + ("end its lines with LF, not CR LF" if named.endswith("\r") else "correct that line")


def _has_unknown_format(path: str) -> bool:
    """Asks the kernel, which may know more than scripts and ELF (binfmt_misc), and runs nothing of the file.

    It refuses what it does not know before it looks at the limit on memory, under which nothing else can start.
    """
    import subprocess  # Late: few programs are texts without a first line for the kernel.

    try:
        # Without an environment, what it is given fits into the first page of its stack, which the limit allows.
        with subprocess.Popen([os.path.abspath(path)], env={}, preexec_fn=_take_memory) as started:
            started.kill()
    except OSError as error:
        return error.errno == errno.ENOEXEC
    except subprocess.SubprocessError:  # The limit could not be set.
        return False
    return False


def _take_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (0, 0))


def _missing_modules(settings: SpawnerSettings) -> list[str]:
    """Returns the modules named in --preload that do not exist."""
    if settings.preload in ("auto", "torch", "none"):
        return []
    folder = preload.script_folder(settings)
    names = [name.strip() for name in settings.preload.split(",")]
    return [name for name in names if name and _why_no_place(name, settings.python, folder)[0]]


def _why_no_module(name: str, python: str) -> str:
    """Returns why the module can't be the main program; a package needs a __main__.py."""
    first = "" if getattr(sys.flags, "safe_path", False) else working_folder.current()
    why, package = _why_no_place(name, python, first)
    if why or package is None or _find(f"{name}.__main__", package, first) is not None:
        return why
    return "it is a package without a __main__.py; name a module in it"


def _why_no_place(name: str, python: str, first: str) -> tuple[str, list[str] | None]:
    """Follows the name, as far as possible without importing, and returns why it is missing, and its folders.

    The folders are None if it is not a package, or may contain modules that no folder shows.
    """
    parts = name.split(".")
    places: list[str] | None = None
    for index, part in enumerate(parts):
        qualified = ".".join(parts[: index + 1])
        if not part:
            return "that is not a module name", None
        spec = _find(qualified, places, first)
        if spec is None:
            return f"{python} finds no module {qualified}; check the name, or install it there", None
        if spec.submodule_search_locations is None:
            is_last = index == len(parts) - 1
            return "" if is_last else f"{qualified} is a module and holds no others; check the name", None
        places = list(spec.submodule_search_locations)
        if _arranges_its_own_path(spec):
            return "", None
    return "", places


def _find(qualified: str, places: list[str] | None, first: str) -> ModuleSpec | None:
    """Finds a module as the interpreter will, with the folder `first`, if any, before all others."""
    known = set(sys.path_importer_cache)
    path = [first, *sys.path] if first else sys.path
    before, sys.path = sys.path, path
    try:
        for finder in sys.meta_path:
            look = getattr(finder, "find_spec", None)
            if look is not None and (spec := look(qualified, places)) is not None:
                return spec
    finally:
        sys.path = before
        for entry in set(sys.path_importer_cache) - known:
            del sys.path_importer_cache[entry]
    return None


def _arranges_its_own_path(spec: ModuleSpec) -> bool:
    """Returns whether a package changes its __path__, and so may contain modules that no folder shows."""
    if not spec.origin or not spec.origin.endswith(".py"):
        return spec.origin is not None
    try:
        with open(spec.origin, "rb") as file:
            return b"__path__" in file.read(_SOURCE_BYTES_MAX)
    except OSError:
        return True


def _may_be_archive(source: bytes, path: str) -> bool:
    """Returns whether the interpreter may run it as a zip file or as compiled code."""
    return b"PK" in source or source[2:4] == b"\r\n" or path.endswith(".pyc")


def _why_not_parsed(path: str) -> str:
    """Returns the first syntax error with file and line; "" if there is none, or if the file is not source code."""
    source = b""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with open(path, "rb") as file:
            source = file.read(_SOURCE_BYTES_MAX + 1)
        if len(source) > _SOURCE_BYTES_MAX or (b"\0" in source and _may_be_archive(source, path)):
            return ""
        compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.text or "").strip()[:_LINE_CHARACTERS_MAX]
        shown = f": {line}" if line else ""
        number = error.lineno or source.count(b"\n", 0, source.find(b"\0")) + 1  # There is none for a NUL byte.
        return f'{error.msg} (File "{path}", line {number}){shown}'
    except (OSError, ValueError, RecursionError, MemoryError):
        return ""
    return ""
