"""Which of the job's own files does an import name, and what does it contain?

A job's own files are in the folders before the installed modules: beside the script, in the working folder under `-m`,
and where the script points sys.path. Installed packages are never read. Nothing is run, and only regular files are
opened. Files, bytes and time have limits; beyond them, nothing more is found.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import stat
import sys
import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

_UNREADABLE = (*importlib.machinery.EXTENSION_SUFFIXES, *importlib.machinery.BYTECODE_SUFFIXES)
# In the order of the import system.
_SUFFIXES = (
    *importlib.machinery.EXTENSION_SUFFIXES,
    *importlib.machinery.SOURCE_SUFFIXES,
    *importlib.machinery.BYTECODE_SUFFIXES,
)
_SCRIPT_BYTES_MAX = 4 * 1024 * 1024


class Limits(NamedTuple):
    """The most that is read, besides the script itself."""

    files: int = 300
    file_bytes: int = 1024 * 1024
    all_bytes: int = 6 * 1024 * 1024
    time_s: float = 1.0


class Source(NamedTuple):
    """One file that was read."""

    name: str  # the module's; "__main__" for the script
    package: str  # where its relative imports start; "" where it can have none
    path: str
    tree: ast.Module


class _Place(NamedTuple):
    """What a name means: a file ("": none that can be read), and the folders of its submodules."""

    path: str
    folders: tuple[str, ...]


class UnreadableError(Exception):
    """Raised when a source can't be read; the text says why."""


class OwnSources:
    """The files read so far, each once."""

    def __init__(self, folders: Sequence[str], limits: Limits = Limits()) -> None:  # noqa: B008 - it is immutable
        self._folders = [folder for folder in folders if folder]
        self._limits = limits
        self._bytes_left = limits.all_bytes
        self._until_s = time.monotonic() + limits.time_s
        self._places: dict[str, _Place | None] = {}
        self._sources: dict[str, Source | None] = {}

    def add_folder(self, folder: str, *, first: bool) -> None:
        """Adds a folder that the script puts on sys.path."""
        if folder not in self._folders:
            self._folders.insert(0 if first else len(self._folders), folder)
            self._places = {name: place for name, place in self._places.items() if place is not None}

    def script(self, path: str, package: str = "") -> Source:
        """Returns the file that will be `__main__`. Raises UnreadableError."""
        return Source("__main__", package, path, _parse(path, _SCRIPT_BYTES_MAX)[0])

    def has(self, name: str) -> bool:
        """Returns whether this module is one of the job's own."""
        return self._place(name) is not None

    def module(self, name: str) -> Source | None:
        """Returns what `import name` runs for the last part of `name`; None if unknown."""
        if name not in self._sources:
            self._sources[name] = self._read(name)
        return self._sources[name]

    def _read(self, name: str) -> Source | None:
        place = self._place(name)
        limit = min(self._limits.file_bytes, self._bytes_left)
        if place is None or not place.path or len(self._sources) >= self._limits.files or limit <= 0:
            return None
        if time.monotonic() > self._until_s:
            return None
        try:
            tree, size = _parse(place.path, limit)
        except UnreadableError:
            return None
        self._bytes_left -= size
        return Source(name, name if place.folders else name.rpartition(".")[0], place.path, tree)

    def _place(self, name: str) -> _Place | None:
        if name not in self._places:
            parent, _, last = name.rpartition(".")
            if not last.isidentifier() or name in sys.builtin_module_names:
                self._places[name] = None
            elif not parent:
                self._places[name] = self._top_level(name)
            else:
                above = self._place(parent)
                self._places[name] = _find(above.folders, last) if above else None
        return self._places[name]

    def _top_level(self, name: str) -> _Place | None:
        place = _find(self._folders, name)
        if place is not None and not place.path and place.folders:
            # A folder without __init__.py: any module of that name further down the path wins over it.
            others = [entry for entry in sys.path if entry and entry not in self._folders]
            installed = _find(others, name)
            if installed is not None and installed.path:
                return None
        return place


def _find(folders: Sequence[str], name: str) -> _Place | None:
    """Returns what the import system would find for `name` in these folders, in order."""
    portions: list[str] = []
    for folder in folders:
        base = os.path.join(folder, name)
        for suffix in _SUFFIXES:
            init = os.path.join(base, f"__init__{suffix}")
            if _is_file(init):
                return _Place(init, (base,))
        for suffix in _SUFFIXES:
            if _is_file(base + suffix):
                return _Place(base + suffix, ())
        if os.path.isdir(base):
            portions.append(base)
    return _Place("", tuple(portions)) if portions else None


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _parse(path: str, bytes_max: int) -> tuple[ast.Module, int]:
    """Returns the tree and its source's size. Raises UnreadableError."""
    try:
        content = _content(path, bytes_max)
        return _tree(content, path), len(content)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"{path} cannot be read ({error})") from error


def _content(path: str, bytes_max: int) -> bytes:
    """Reads a file. A pipe or a device would block, so it is checked before and after opening."""
    if path.endswith(_UNREADABLE):
        raise OSError("it is not source code")
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError("it is not a regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        if status.st_size > bytes_max:
            raise OSError(f"it has more than {bytes_max} bytes")
        return file.read(bytes_max)


def _tree(content: bytes, path: str) -> ast.Module:
    """Compiles without warnings, which are for the worker that runs the source."""
    there = sys.modules.get("warnings")
    sys.modules["warnings"] = warnings  # Where the compiler looks for the filters; ours may be a private copy.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(content, filename=path)
    finally:
        if there is None:
            del sys.modules["warnings"]
        else:
            sys.modules["warnings"] = there
