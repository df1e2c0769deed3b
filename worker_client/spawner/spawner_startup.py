"""How does a process that was just started become the spawner of a job?

All modules of ours are loaded at the top of a file: later, the job's own worker_client would be found, or the files of
another version.
"""

from __future__ import annotations

import atexit
import gc
import importlib.machinery
import os
import resource
import sys
from contextlib import suppress
from typing import NoReturn

from holdfast_wire import spawner_settings
from holdfast_wire.spawner_settings import SpawnerSettings

from . import (
    child_state,
    command_check,
    fork_fitness,
    huge_heap,
    preload,
    preload_environment,
    process_attributes,
    supervisor_reconnect,
)
from .auto_heartbeat import AutoHeartbeat
from .background_priority import BackgroundPriority
from .fork_and_exec import BecomeWorkerError
from .learned_imports import LearnedImports
from .preload_environment import Origin
from .spawner import Spawner
from .start_method import Method

_DROPPED_MAX = 8  # modules left out one by one, each with a new load; after that, all are
_DROPPED_REMEDY = "; all else is loaded ahead, and --preload MODULES says what may be"
_OWN = "worker_client."  # a package that is here before anything is loaded ahead: this module is in it


def run_as_script(hook_folder: str) -> None:
    """Runs the spawner inside the interpreter that would run the script. Returns only in forked workers."""
    settings, link_fd = _take_settings(hook_folder)
    origin = Origin.now()
    choice = preload.choose(settings)
    _refuse_what_cannot_run(settings, link_fd, choice)
    title = process_attributes.Title()
    before = set(sys.modules)
    background = None
    if settings.learned:
        process_attributes.die_with_link(link_fd)  # A load would delay noticing a lost supervisor.
        background = BackgroundPriority()
    if not choice.as_script:
        gc.disable()  # What torch loads stays: searching it for garbage would take a sixth of the time.
    if any(map(preload.is_of_torch, choice.modules)):
        huge_heap.reserve(huge_heap.TORCH_BYTES)
    failure = _load(choice, settings)
    if background is not None:
        background.end()
        process_attributes.outlive_link(link_fd)
    if failure is not None and settings.preload != "none":
        _start_over(_without(settings, failure), link_fd, hook_folder, origin)
    origin.close()
    new_modules = set(sys.modules) - before
    if new_modules:
        gc.freeze()
    if not choice.as_script:
        gc.enable()
    if failure is not None:  # It comes with the interpreter: a library in LD_PRELOAD or a .pth file starts a thread.
        _execute_workers(settings, link_fd, Method("exec", f"workers are executed: {failure.sentence}", ()))
    # Each worker looks for it in every folder of sys.path; their contents are read once, here.
    importlib.machinery.PathFinder.find_spec("sitecustomize")
    sets_threads = "OMP_NUM_THREADS" not in choice.variables
    watch = AutoHeartbeat(settings)
    inherited = child_state.remember(title, _own_fds(settings, link_fd), sets_threads=sets_threads)
    loaded = tuple(name for name in choice.modules if name in sys.modules)
    may_learn = settings.may_restart and settings.preload == "auto"
    learning = LearnedImports(choice.steps, choice.learns, wanted=may_learn)
    method = Method("fork", choice.reason, loaded, lost=settings.lost)
    spawner = Spawner(settings, method, inherited, link_fd, learning, watch)
    counts_leaks = preload_environment.counts_leaks(new_modules)
    try:
        spawner.run()
    except BecomeWorkerError:
        if counts_leaks:
            atexit.register(gc.unfreeze)  # Its end takes as long as without us, and is as silent.
        return


def run_plain() -> NoReturn:
    """Runs a spawner that executes its workers. Does not return."""
    settings, link_fd = _take_settings("")
    _refuse_what_cannot_run(settings, link_fd, None)
    reason = (
        "workers are executed: the command is not a Python script"
        if settings.entry == "command"
        else "workers are executed: spawn method exec was asked for"
    )
    _execute_workers(settings, link_fd, Method("exec", reason, ()))


def _execute_workers(settings: SpawnerSettings, link_fd: int, method: Method) -> NoReturn:
    inherited = child_state.remember(process_attributes.Title(), _own_fds(settings, link_fd))
    Spawner(settings, method, inherited, link_fd, LearnedImports(wanted=False), AutoHeartbeat(settings)).run()


def _refuse_what_cannot_run(settings: SpawnerSettings, link_fd: int, choice: preload.Choice | None) -> None:
    """Does not return if the command can't be run: the supervisor learns why, and ends this process.

    A command that has run before is not checked again: its present problem may pass. `choice` None: the plain spawner,
    whose module path differs from the workers'.
    """
    if settings.learned:
        return
    source = preload.source_path(settings) if choice is not None or settings.entry == "script" else ""
    refusal = command_check.refusal(settings, source=source, sees_modules=choice is not None)
    if refusal is not None:
        _execute_workers(settings, link_fd, Method("exec", refusal.reason, (), refusal))


def _take_settings(hook_folder: str) -> tuple[SpawnerSettings, int]:
    """Reads what the supervisor passed, and leaves the environment as the user set it."""
    link_fd = int(os.environ.pop(spawner_settings.FD_VARIABLE))
    os.environ.pop(spawner_settings.COMMAND_VARIABLE, None)
    settings = spawner_settings.take_settings(int(os.environ.pop(spawner_settings.SETTINGS_VARIABLE)))
    if hook_folder:
        if settings.python_path is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = settings.python_path
    if settings.open_files:
        _restore_open_files(*settings.open_files)
    supervisor_reconnect.listen(settings.return_fd)
    return settings, link_fd


def _own_fds(settings: SpawnerSettings, link_fd: int) -> frozenset[int]:
    return frozenset({link_fd, settings.return_fd, settings.watch_fd, settings.console_line_fd})


def _restore_open_files(before: int, raised: int) -> None:
    """Undoes the supervisor's raised limit, unless the user's wrapper of the interpreter has set another."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == raised:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def _load(choice: preload.Choice, settings: SpawnerSettings) -> preload_environment.Failure | None:
    """Carries out the choice, and checks whether this process may still be forked."""
    folder = preload.script_folder(settings)

    def objection(new_modules: set[str]) -> str:
        theirs = {name for name in new_modules if not name.startswith(_OWN) and not choice.as_script}
        return fork_fitness.objection(theirs, folder, choice.folders)

    before = set(sys.modules)
    if choice.as_script and folder:
        sys.path.insert(0, folder)
    try:
        failure = preload_environment.load(
            choice.steps, objection if settings.learned else None, skips_parts=not choice.as_script
        )
    finally:
        if choice.as_script and folder:
            sys.path.remove(folder)
    if failure is not None or settings.method == "fork":
        return failure
    why = objection(set(sys.modules) - before)
    return preload_environment.Failure("", why) if why else None


def _without(settings: SpawnerSettings, failure: preload_environment.Failure) -> SpawnerSettings:
    """Returns settings to start over, without any trace of the load: without that module, else without any."""
    kept = tuple(step for step in settings.learned if step != failure.step)
    if settings.lost.count("; ") >= _DROPPED_MAX:
        kept = tuple(step for step in kept if "=" in step or preload.is_of_torch(step))
    if failure.step and not preload.is_of_torch(failure.step) and any("=" not in step for step in kept):
        before = (
            f"{settings.lost.removesuffix(_DROPPED_REMEDY)}; " if settings.lost else "each worker loads it itself: "
        )
        return settings._replace(learned=kept, lost=f"{before}{failure.sentence}{_DROPPED_REMEDY}")
    decided = f"workers are forked from a bare interpreter: {failure.sentence}"
    lost = f"each worker loads its modules itself: {failure.sentence}; {_remedy(settings, failure)}"
    return settings._replace(preload="none", decided=decided, learned=(), lost=lost)


def _remedy(settings: SpawnerSettings, failure: preload_environment.Failure) -> str:
    if settings.preload != "auto":
        return "leave it out of --preload, or correct it"
    if "would be hidden" in failure.sentence:
        return "rename that file, or accept it with --preload none"
    return "accept it with --preload none"


def _start_over(settings: SpawnerSettings, link_fd: int, hook_folder: str, origin: Origin) -> NoReturn:
    """Starts over as the same process, with the environment of its first start."""
    settings_fd = spawner_settings.settings_file(settings)
    for fd in (_own_fds(settings, link_fd) | {settings_fd}) - {-1}:
        os.set_inheritable(fd, True)
    path = settings.python_path
    origin.restore()
    env = origin.environment | {
        "PYTHONPATH": f"{hook_folder}{os.pathsep}{path}" if path else hook_folder,
        spawner_settings.FD_VARIABLE: str(link_fd),
        spawner_settings.SETTINGS_VARIABLE: str(settings_fd),
        spawner_settings.COMMAND_VARIABLE: spawner_settings.command_mark(settings),
    }
    argv = spawner_settings.worker_argv(settings)
    os.execvpe(argv[0], list(argv), env)
