"""How are modules loaded ahead so that workers find the environment as it was, and what must not stay in the process?

A script sets variables before its imports. They are also set for the load and reset after it: each worker starts with
the environment that it would have had, and sets them itself. Variables that a module sets while it is loaded stay,
because the workers do not load it again.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import NamedTuple

from . import child_state, compile_facts, preload, rank_reads

Objection = Callable[[set[str]], str]  # what forbids a fork after these modules were loaded; "" where nothing does


class Failure(NamedTuple):
    """The step at which the load failed ("": no single one), and a sentence that says why."""

    step: str
    sentence: str
    is_missing: bool = False  # it is numpy or a part of torch that can't be imported here


class Origin(NamedTuple):
    """The state of this process that an execve would pass on, from before anything was loaded."""

    environment: dict[str, str]
    folder: int  # a descriptor; -1 where it can't be had
    mask: int
    ignored: frozenset[int]

    @classmethod
    def now(cls) -> Origin:
        try:
            folder = os.open(os.curdir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            folder = -1
        ignored = {each for each in signal.valid_signals() if signal.getsignal(each) is signal.SIG_IGN}
        return cls(dict(os.environ), folder, _mask(), frozenset(ignored))

    def restore(self) -> None:
        """Restores everything except the environment, which the caller passes on."""
        if self.folder >= 0:
            with suppress(OSError):
                os.fchdir(self.folder)
        os.umask(self.mask)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if (signal.getsignal(number) is signal.SIG_IGN) != (number in self.ignored):
                signal.signal(number, signal.SIG_IGN if number in self.ignored else signal.SIG_DFL)

    def close(self) -> None:
        if self.folder >= 0:
            os.close(self.folder)


def assignment(name: str, value: str | None) -> str:
    """Returns the step that sets a variable, or removes it."""
    return f"-{name}=" if value is None else f"{name}={value}"


def load(steps: Iterable[str], objection: Objection | None = None, *, skips_parts: bool = False) -> Failure | None:
    """Imports modules and sets variables; returns None if all went well.

    `skips_parts`: a part of torch, or numpy, that is not installed is left out, since a script may try to import it,
    such as torch.utils.tensorboard.
    `objection` is called after each module. A module also fails if it leaves state in this process that a fork would
    not copy as the worker's own import would have created it.
    """
    before = dict(os.environ)
    of_modules: dict[str, str | None] = {}
    failure: Failure | None = None
    for step in steps:
        name, is_assignment, value = step.partition("=")
        if not is_assignment:
            failure = _load_one(name, of_modules, objection)
            if failure is not None and failure.is_missing and skips_parts and name != "torch":
                failure = None
        elif name.startswith("-"):
            os.environ.pop(name[1:], None)
        else:
            os.environ[name] = value
        if failure is not None:
            break
    else:
        compile_facts.find_out()  # With the variables that the script sets; what it sets itself does not stay.
    restore_environment(before)
    if failure is not None:
        return failure
    for name, value in of_modules.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return None


def _load_one(name: str, of_modules: dict[str, str | None], objection: Objection | None) -> Failure | None:
    state = _State.now() if objection is not None and not preload.is_of_torch(name) else None
    environment, modules = dict(os.environ), set(sys.modules)
    read: dict[str, str] = {}
    try:
        with rank_reads.watched() if state is not None else nullcontext(read) as read:
            importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what a module raises at import is the script's to meet
        is_missing = preload.is_of_torch(name) and isinstance(error, ImportError)
        return Failure(name, f"{name} could not be loaded ahead: {type(error).__name__}: {error}", is_missing)
    if name == preload.DYNAMO:
        restore_environment(environment)  # The script does not import it itself at its top.
    now = dict(os.environ)
    changed = {key for key in {*environment, *now} if environment.get(key) != now.get(key)}
    of_modules.update({key: now.get(key) for key in changed})
    if state is not None and (difference := state.difference()):
        return Failure(name, f"{name} {difference}, which workers would share")
    if read:
        variable, reader = next(iter(read.items()))
        return Failure(name, f"{name} reads {variable} when it is loaded (in {reader}), which only a worker has")
    why = objection(set(sys.modules) - modules) if objection is not None else ""
    return Failure(name, f"{name}: {why}") if why else None


def counts_leaks(modules: Iterable[str]) -> bool:
    """Tells whether one of them was made with nanobind (triton's is), which prints at the end of the process what the
    garbage collector has left: dozens of lines, if all that was loaded is frozen.
    """
    loaded = (sys.modules.get(name) for name in modules)
    extensions = (each for each in loaded if str(getattr(each, "__file__", "")).endswith(".so"))
    return any(type(value).__module__ == "nanobind" for each in extensions for value in tuple(vars(each).values()))


def restore_environment(before: Mapping[str, str]) -> None:
    """Resets the environment to `before`."""
    for name in set(os.environ) - set(before):
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


class _State(NamedTuple):
    """State that a module must not change while it is loaded, if workers are to be forked from this process."""

    descriptors: frozenset[int]
    handlers: tuple[object, ...]
    children: str
    path: tuple[str, ...]
    folder: tuple[int, int]
    mask: int

    @classmethod
    def now(cls) -> _State:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            children = file.read()
        handlers = tuple(signal.getsignal(number) for number in sorted(signal.valid_signals()))
        return cls(frozenset(child_state.open_fds()), handlers, children, tuple(sys.path), _folder(), _mask())

    def difference(self) -> str:
        now = _State.now()
        texts = (
            "opens files or sockets",
            "handles signals",
            "starts a process",
            "changes sys.path",
            "changes the working folder",
            "changes the umask",
        )
        return next((text for text, old, new in zip(texts, self, now, strict=True) if old != new), "")


def _mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _folder() -> tuple[int, int]:
    """Returns the current folder's identity, even if the folder was removed."""
    status = os.stat(os.curdir)
    return status.st_dev, status.st_ino
