"""What does a worker import by itself, and what has it changed before each import? The worker's side of learning.

A newly forked worker has a watch on the finders of the import system. The watch notes the first import of each
installed module that no other installed module requested, and that of torch in any case. It uses a page shared with
the spawner, so it takes no descriptor of the worker, and wakes the spawner with a signal that the spawner waits for
anyway. Once there is a process group, only parts of torch count: torch.compile loads some of its own at the first step.
The watch removes itself at the first import after the spawner has learned enough. An audit hook would see the same, but
can't be removed and costs a microsecond for each audited operation.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import time
from _thread import get_ident
from contextlib import suppress
from importlib.machinery import FileFinder, ModuleSpec
from types import ModuleType
from typing import NamedTuple

from . import preload, process_attributes

SLOT_BYTES = 32 * 1024
IMPORTS_MAX = 200
_HEADER_BYTES = 24  # written, closed, size, and the moment of the last import below the newest one
_SUFFIXES = ("/__init__.py", ".py")
_INSTALLED = ("site-packages", "dist-packages")


class Import(NamedTuple):
    """One installed module that a worker imported."""

    name: str
    at_ns: int
    took_ns: int  # at least; until the last import that it made itself
    changed: dict[str, str | None]  # variables that differ from the worker's start; None: removed
    folders: tuple[str, ...]  # placed before the installed modules by then


class Notes(NamedTuple):
    """All that one worker noted."""

    imports: tuple[Import, ...] = ()
    objection: str = ""  # why nothing can be loaded ahead, as the rest of a sentence about the worker


class Slot:
    """One worker's part of the shared page. The worker writes, the spawner reads and closes it."""

    def __init__(self, page: mmap.mmap, number: int) -> None:
        self._page = page
        self._at = number * SLOT_BYTES

    def clear(self) -> None:
        self._page[self._at : self._at + _HEADER_BYTES] = bytes(_HEADER_BYTES)

    def close(self) -> None:
        """Closes the slot: it is no longer read."""
        self._page[self._at + 1] = 1

    @property
    def is_closed(self) -> bool:
        return bool(self._page[self._at + 1])

    @property
    def stamped_ns(self) -> int:
        """When the worker last looked for a module that it then imported, as far as noted."""
        return int.from_bytes(self._page[self._at + 8 : self._at + 16], "little")

    def read(self) -> Notes:
        start = self._at
        if not self._page[start]:
            return Notes()
        size = int.from_bytes(self._page[start + 4 : start + 8], "little")
        try:
            imports, objection = json.loads(self._page[start + _HEADER_BYTES : start + _HEADER_BYTES + size])
        except ValueError:  # It is being written: there will be another signal.
            return Notes()
        found = [Import(name, at, took, changed, tuple(folders)) for name, at, took, changed, folders in imports]
        if found:
            found[-1] = found[-1]._replace(took_ns=max(0, self.stamped_ns - found[-1].at_ns))
        return Notes(tuple(found), objection)

    def write(self, notes: Notes) -> bool:
        """Writes the notes; returns False if there is no room."""
        text = json.dumps(notes, separators=(",", ":")).encode()
        if len(text) > SLOT_BYTES - _HEADER_BYTES:
            return False
        at = self._at
        self._page[at] = 0
        self._page[at + _HEADER_BYTES : at + _HEADER_BYTES + len(text)] = text
        self._page[at + 4 : at + 8] = len(text).to_bytes(4, "little")
        self._page[at] = 1  # Last, so that the data is complete.
        return True

    def stamp(self, now_ns: int) -> None:
        self._page[self._at + 8 : self._at + 16] = now_ns.to_bytes(8, "little")


def observe(slot: Slot) -> None:
    """Begins to observe, in a newly forked worker, if torch is loaded or installed."""
    torch = sys.modules.get("torch")
    folders = [entry for entry in sys.path if _has_torch(entry)]
    if torch is None and not folders:
        return
    installed = {*folders, *(entry for entry in sys.path if os.path.basename(entry) in _INSTALLED)}
    watch = _Watch(slot, tuple(os.path.join(entry, "") for entry in sorted(installed)), has_torch=torch is not None)
    watch.begin()


class _Watch:
    """What one worker has done so far."""

    def __init__(self, slot: Slot, installed: tuple[str, ...], *, has_torch: bool) -> None:
        self._slot = slot
        self._installed = installed
        self._has_torch = has_torch
        self._find_spec = FileFinder.find_spec
        self._pid = os.getpid()
        self._thread = get_ident()
        self._spawner = os.getppid()
        self._path = tuple(sys.path)
        self._cpus = os.sched_getaffinity(0)
        self._variables = process_attributes.variables()
        self._imports: list[Import] = []
        self._last_ns = 0  # of an import below the newest one of these

    def begin(self) -> None:
        find, note = self._find_spec, self._note

        def find_spec(self: FileFinder, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
            spec = find(self, fullname, target)
            if spec is not None and spec.origin is not None:
                note(fullname, spec.origin)
            return spec

        FileFinder.find_spec = find_spec

    def _end(self) -> None:
        FileFinder.find_spec = self._find_spec

    def _note(self, name: str, origin: str) -> None:
        if os.getpid() != self._pid:
            self._end()  # In a child of the worker, which inherited this; only the worker's own notes count.
        elif get_ident() == self._thread:
            try:
                self._note_import(name, origin)
            except Exception:  # noqa: BLE001 - whatever it is: the script goes on, and no more is learned from it
                self._end()

    def _note_import(self, name: str, origin: str) -> None:
        now_ns = time.monotonic_ns()
        is_below = bool(self._imports) and _is_being_imported(self._imports[-1].name)
        if is_below:
            self._last_ns = now_ns
            self._slot.stamp(now_ns)
            if self._has_torch or name != "torch":
                return  # Torch counts wherever it comes from: Lightning may be imported before it.
        if self._slot.is_closed or len(self._imports) >= IMPORTS_MAX:
            self._end()
        elif _has_group() and not preload.is_of_torch(name):
            return
        elif origin.startswith(self._installed) and _is_import():
            self._look(name, now_ns, is_below=is_below)

    def _look(self, name: str, now_ns: int, *, is_below: bool) -> None:
        if self._imports and not is_below:
            last = self._imports.pop()
            if last.name in sys.modules:  # It could be imported.
                self._imports.append(last._replace(took_ns=self._last_ns - last.at_ns))
        self._last_ns = now_ns
        folders = _folders_before(self._path, sys.path)
        now = process_attributes.variables()
        changed = {
            os.fsdecode(key): os.fsdecode(now[key]) if key in now else None
            for key in sorted({*now, *self._variables})
            if now.get(key) != self._variables.get(key)
        }
        objection = ""
        if folders is None:
            objection = f"replaced sys.path before it imported {name}"
        elif os.sched_getaffinity(0) != self._cpus:
            objection = f"was bound to other CPUs before it imported {name}"
        if objection:
            self._end()
            if self._has_torch:
                return  # Earlier imports can still be loaded ahead.
        else:
            place = len(self._imports) - is_below  # One that is under way is loaded after what it needs.
            self._imports.insert(place, Import(name, now_ns, 0, changed, tuple(folders or ())))
            self._has_torch |= name.partition(".")[0] == "torch"
        if not self._slot.write(Notes(tuple(self._imports), objection)):
            self._end()
            return
        self._slot.stamp(now_ns)
        if (self._has_torch or objection) and os.getppid() == self._spawner:
            os.kill(self._spawner, signal.SIGCHLD)


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _has_group() -> bool:
    """Returns whether this process has a process group by now."""
    distributed = sys.modules.get("torch.distributed")
    with suppress(Exception):  # a part of torch that is being loaded, or one without it
        return bool(distributed is not None and distributed.is_initialized())
    return False


def _is_import() -> bool:
    """Returns whether a module is searched for to be loaded, and not only to see whether it exists."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] - what inspect.currentframe calls, without inspect
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "_find_and_load_unlocked":
            return True
        frame = frame.f_back
    return False


def _has_torch(entry: str) -> bool:
    return any(os.path.isfile(os.path.join(entry, "torch") + suffix) for suffix in _SUFFIXES)


def _folders_before(first: tuple[str, ...], now: list[str]) -> list[str] | None:
    """Returns the folders in `now` before or among those of `first`; None if one of these is gone or moved."""
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
