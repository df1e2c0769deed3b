"""How does a process that was just started become the spawner of a job?"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import os
import resource
import sys
from contextlib import suppress
from typing import NoReturn

from holdfast_wire import spawner_settings
from holdfast_wire.spawner_settings import SpawnerSettings

from . import child_state, fitness, identity, preload, runnable
from .background import Background
from .children import BecomeWorkerError
from .learning import Learning
from .loop import Spawner
from .method import Method

_OWN = "worker_client."  # a package that is here before anything is loaded ahead: this module is in it


def run_as_script(hook_folder: str) -> None:
    """Be the spawner inside the interpreter that would run the script. Returns in each forked worker only."""
    settings, link_fd = _take_settings(hook_folder)
    choice = preload.choose(settings)
    _refuse_what_cannot_run(settings, link_fd, choice)
    if choice.method == "exec" and settings.method != "fork":
        _start_plain(settings, link_fd, choice.reason)
    title = identity.Title()
    before = set(sys.modules)
    background = None
    if settings.learned:
        identity.die_with_link(link_fd)  # Nobody hears of a lost supervisor while something is loaded.
        background = Background()
    if not choice.as_script:
        gc.disable()  # What torch loads stays: to look for garbage in it takes a sixth of the time.
    failure = _load(choice, settings)
    if background is not None:
        background.end()
        identity.outlive_link(link_fd)
    if failure:
        _start_bare(settings, link_fd, hook_folder, failure)
    new_modules = set(sys.modules) - before
    checked = {name for name in new_modules if not name.startswith(_OWN) and not choice.as_script}
    objection = fitness.objection(checked, preload.script_folder(settings), choice.folders)
    if objection and settings.method != "fork":
        _start_plain(settings, link_fd, f"workers are executed: {objection}")
    if new_modules:
        gc.freeze()
    if not choice.as_script:
        gc.enable()
    # Each worker looks for it in every folder of sys.path: what those hold is read once, here.
    importlib.machinery.PathFinder.find_spec("sitecustomize")
    inherited = child_state.remember(title, frozenset({link_fd}))
    loaded = tuple(name for name in choice.modules if name in sys.modules)
    learning = Learning(choice.learns if settings.may_restart else ())
    spawner = Spawner(settings, Method("fork", choice.reason, loaded), inherited, link_fd, learning)
    try:
        spawner.run()
    except BecomeWorkerError:
        return


def run_plain() -> NoReturn:
    """Be a spawner that executes its workers. Does not return."""
    settings, link_fd = _take_settings("")
    _refuse_what_cannot_run(settings, link_fd, None)
    inherited = child_state.remember(identity.Title(), frozenset({link_fd}))
    reason = settings.decided or (
        "workers are executed: the command is not a Python script"
        if settings.entry == "command"
        else "workers are executed: spawn method exec was asked for"
    )
    Spawner(settings, Method("exec", reason, ()), inherited, link_fd, Learning(())).run()


def _refuse_what_cannot_run(settings: SpawnerSettings, link_fd: int, choice: preload.Choice | None) -> None:
    """Does not return where the command can't be run: the supervisor hears why, and ends this process.

    A command that has run before is not judged again: what is amiss with it now may pass. `choice` None: the plain
    spawner, whose module path is not that of the workers.
    """
    if settings.learned:
        return
    was_read = choice is not None and settings.preload == "auto" and not choice.is_unread
    source = (
        "" if was_read else preload.source_path(settings) if choice is not None or settings.entry == "script" else ""
    )
    refusal = runnable.refusal(settings, source=source, sees_modules=choice is not None)
    if refusal is None:
        return
    inherited = child_state.remember(identity.Title(), frozenset({link_fd}))
    Spawner(settings, Method("exec", refusal.reason, (), refusal), inherited, link_fd, Learning(())).run()


def _take_settings(hook_folder: str) -> tuple[SpawnerSettings, int]:
    """Read what the supervisor passed, and leave the environment as the user made it."""
    link_fd = int(os.environ.pop(spawner_settings.FD_VARIABLE))
    settings = spawner_settings.settings_from_json(os.environ.pop(spawner_settings.SETTINGS_VARIABLE))
    if hook_folder:
        if settings.python_path is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = settings.python_path
    if settings.open_files:
        _restore_open_files(*settings.open_files)
    return settings, link_fd


def _restore_open_files(before: int, raised: int) -> None:
    """The supervisor raised its own limit; what a wrapper of the interpreter may have set since is the user's wish."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == raised:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def _load(choice: preload.Choice, settings: SpawnerSettings) -> str:
    """Import the chosen modules; the reason where one can't be imported."""
    folder = preload.script_folder(settings)
    if choice.as_script and folder:
        sys.path.insert(0, folder)
    name = ""
    try:
        for name in choice.modules:
            environment = dict(os.environ)
            importlib.import_module(name)
            if name == preload.DYNAMO:
                _restore_environment(environment)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what a module raises at import is the script's to meet
        return f"{name} could not be loaded ahead: {type(error).__name__}: {error}"
    finally:
        if choice.as_script and folder:
            sys.path.remove(folder)
    return ""


def _restore_environment(before: dict[str, str]) -> None:
    """What a module set that the script does not import itself at its top, it would not see there yet."""
    for name in set(os.environ) - set(before):
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _start_plain(settings: SpawnerSettings, link_fd: int, reason: str) -> NoReturn:
    """Start over as the plain spawner, so that nothing that was loaded lingers."""
    whole = settings._replace(decided=reason)
    _replace(spawner_settings.plain_argv(whole), whole, link_fd, os.environ.get("PYTHONPATH"))


def _start_bare(settings: SpawnerSettings, link_fd: int, hook_folder: str, reason: str) -> NoReturn:
    """Start over without a preload: half a module must not linger."""
    decided = f"workers are forked from a bare interpreter: {reason}"
    whole = settings._replace(preload="none", decided=decided, learned=())
    path = settings.python_path
    hooked = f"{hook_folder}{os.pathsep}{path}" if path else hook_folder
    _replace(spawner_settings.worker_argv(whole), whole, link_fd, hooked)


def _replace(argv: tuple[str, ...], settings: SpawnerSettings, link_fd: int, python_path: str | None) -> NoReturn:
    os.set_inheritable(link_fd, True)
    env = dict(os.environ)
    if python_path is not None:
        env["PYTHONPATH"] = python_path
    env[spawner_settings.FD_VARIABLE] = str(link_fd)
    env[spawner_settings.SETTINGS_VARIABLE] = settings.to_json()
    os.execvpe(argv[0], list(argv), env)
