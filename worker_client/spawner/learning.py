"""What do the workers of a bare interpreter import by themselves, so that the next ones may find it loaded?

Each of them has a watch on the finder of the folder in which torch is installed. It sees the import of torch, and
whether anything that a load reads was changed before it, and is gone then. It writes into a page that is shared with
the spawner, so that no descriptor of the worker is taken, and wakes the spawner by the signal that it waits for anyway.
An audit hook would see the same, but stays for ever and costs a microsecond for each audited operation.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from importlib.machinery import FileFinder, ModuleSpec
from types import ModuleType
from typing import NamedTuple

from . import identity, preload

RANKS_MAX = 256  # local ranks above are not watched, and then nothing is learned
SLOT_BYTES = 4096
_IMPORTS_TORCH, _OBJECTS = 1, 2
_SUFFIXES = ("/__init__.py", ".py")


class Lesson(NamedTuple):
    """`modules` to load ahead, provided that `folders` (put before the installed modules) hide none of what they load.

    Without modules, `reason` says what forbids it.
    """

    modules: tuple[str, ...]
    folders: tuple[str, ...]
    reason: str


class Learning:
    """The spawner's side; `observe` is the worker's. It ends with the first lesson."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        """`modules`: what to load ahead once every worker was seen to import torch; none: there is nothing to learn."""
        self._modules = modules
        self._page = mmap.mmap(-1, RANKS_MAX * SLOT_BYTES) if modules else None
        self._cycle = -1
        self._ranks: set[int] = set()

    def begin(self, cycle: int, local_ranks: Collection[int]) -> None:
        """These workers are about to be started."""
        if self._page is None:
            return
        if cycle != self._cycle:
            self._cycle = cycle
            self._ranks.clear()
        self._ranks.update(local_ranks)
        if max(self._ranks, default=0) >= RANKS_MAX:
            self._page = None
            return
        for local_rank in local_ranks:
            self._page[local_rank * SLOT_BYTES] = 0

    def lesson(self) -> Lesson | None:
        """What the workers taught, once all of a cycle did or one of them forbids it; None before and after that."""
        page = self._page
        if page is None or not self._ranks:
            return None
        flags = {local_rank: page[local_rank * SLOT_BYTES] for local_rank in self._ranks}
        for local_rank, flag in sorted(flags.items()):
            if flag & _OBJECTS:
                self._page = None
                change = "".join(_read(page, local_rank))
                return Lesson((), (), f"nothing is loaded ahead: local rank {local_rank} {change}")
        if not all(flag & _IMPORTS_TORCH for flag in flags.values()):
            return None
        self._page = None
        folders = tuple(dict.fromkeys(folder for local_rank in sorted(flags) for folder in _read(page, local_rank)))
        return Lesson(self._modules, folders, "every worker imports torch by itself, so the next cycle finds it loaded")

    def observe(self, local_rank: int) -> None:
        """In a worker that was just forked: watch for its import of torch, where that is installed."""
        if self._page is None:
            return
        folder = next((entry for entry in sys.path if _has_torch(entry)), None)
        finder = _finder_of(folder) if folder is not None else None
        if finder is not None:
            finder.find_spec = _Observer(self._page, local_rank, finder).find_spec


class _Observer:
    """What one worker did before it imported torch."""

    def __init__(self, page: mmap.mmap, local_rank: int, finder: FileFinder) -> None:
        self._page = page
        self._local_rank = local_rank
        self._finder = finder
        self._pid = os.getpid()
        self._spawner = os.getppid()
        self._path = tuple(sys.path)
        self._cpus = os.sched_getaffinity(0)
        self._variables = identity.variables()

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """In the place of the finder's own method, until torch is imported."""
        if fullname == "torch" and _is_import():
            del self._finder.find_spec  # The class has it, too.
            with suppress(Exception):  # Whatever it is: the script goes on, and nothing is learned from it.
                self._look()
        return FileFinder.find_spec(self._finder, fullname, target)

    def _look(self) -> None:
        folders = _folders_before(self._path, sys.path)
        now = identity.variables()
        changed = [name for name in sorted({*now, *self._variables}) if now.get(name) != self._variables.get(name)]
        too_late = [os.fsdecode(name) for name in changed if preload.is_read_at_load(os.fsdecode(name))]
        if too_late:
            self._tell(_OBJECTS, [f"changed {too_late[0]} before it imported torch"])
        elif folders is None:
            self._tell(_OBJECTS, ["replaced sys.path before it imported torch"])
        elif os.sched_getaffinity(0) != self._cpus:
            self._tell(_OBJECTS, ["was bound to other CPUs before it imported torch"])
        else:
            self._tell(_IMPORTS_TORCH, folders)

    def _tell(self, flag: int, words: list[str]) -> None:
        if os.getpid() != self._pid:
            return  # A child of the worker, which inherited this; the worker's own word counts.
        text = json.dumps(words).encode()
        if len(text) > SLOT_BYTES - 4:
            return
        at = self._local_rank * SLOT_BYTES
        self._page[at + 2 : at + 4] = len(text).to_bytes(2, "big")
        self._page[at + 4 : at + 4 + len(text)] = text
        self._page[at] = flag  # Last: what it speaks of is there.
        if os.getppid() == self._spawner:
            os.kill(self._spawner, signal.SIGCHLD)


def _is_import() -> bool:
    """Whether a module is looked for to be loaded, and not only to see whether it is there."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] - what inspect.currentframe calls, without inspect
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "_find_and_load_unlocked":
            return True
        frame = frame.f_back
    return False


def _has_torch(entry: str) -> bool:
    return any(os.path.isfile(os.path.join(entry, "torch") + suffix) for suffix in _SUFFIXES)


def _finder_of(folder: str) -> FileFinder | None:
    """The one that the import system would make at its first look into the folder; None where it is no plain one."""
    for hook in () if sys.path_importer_cache.get(folder) else sys.path_hooks:
        with suppress(ImportError):  # Not of this kind.
            sys.path_importer_cache[folder] = hook(folder)
            break
    finder = sys.path_importer_cache.get(folder)
    return finder if type(finder) is FileFinder else None


def _folders_before(first: tuple[str, ...], now: list[str]) -> list[str] | None:
    """The folders that stand in `now` before or among those of `first`; None where one of these is gone or moved."""
    folders: list[str] = []
    waiting = list(first)
    for entry in now:
        if not waiting:
            break
        if entry == waiting[0]:
            del waiting[0]
        else:
            folders.append(os.path.abspath(entry))
    return None if waiting else folders


def _read(page: mmap.mmap, local_rank: int) -> list[str]:
    at = local_rank * SLOT_BYTES
    size = int.from_bytes(page[at + 2 : at + 4], "big")
    return json.loads(page[at + 4 : at + 4 + size])
