"""How does the fork server get into the interpreter that will run the user's script, and out of it without a trace?

This folder is the first entry of PYTHONPATH when the spawner starts, so the interpreter imports this file before it
looks at the script. The spawner runs here until it ends. Each worker that it forks returns from here, and the
interpreter continues as usual: it runs the script itself, with no frame of ours below it.
docs/decisions/0002-spawner-starts-as-the-script.md says why.
"""

import os
import sys

# Imports nothing that the script would find already imported, not even __future__. Type checkers know this name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _load_spawner() -> "Callable[[str], None]":
    """Returns the spawner's entry point, leaving no module in sys.modules and no folder on sys.path.

    Its modules are private copies: later imports of the script or preloaded modules work as in any process.
    """
    modules = set(sys.modules)
    cached = set(sys.path_importer_cache)
    path = sys.path[:]
    library = os.path.dirname(os.__file__)
    # Only the standard library and ours: the user's modules may have the same names.
    own = [entry for entry in path if entry == library or entry.endswith(("lib-dynload", ".zip"))]
    sys.path[:] = own
    try:
        import json

        settings_fd = int(os.environ["HOLDFAST_SPAWNER_SETTINGS"])
        import_folders = json.loads(os.pread(settings_fd, os.fstat(settings_fd).st_size, 0))["import_folders"]
        sys.path += import_folders
        package = type(sys)("worker_client")  # The real package would load the client, and protobuf with it.
        package.__path__ = [os.path.dirname(os.path.dirname(_HOOK))]
        sys.modules["worker_client"] = package
        from worker_client.spawner.interpreter import refuse_old

        refuse_old()
        from worker_client.spawner.spawner_startup import run_as_script

        return run_as_script
    finally:
        sys.path[:] = path
        for name in [name for name in sys.modules if name not in modules]:
            del sys.modules[name]
        for entry in set(sys.path_importer_cache) - cached:
            del sys.path_importer_cache[entry]


def _remove_hook() -> None:
    sys.path[:] = [entry for entry in sys.path if entry != _HOOK]
    sys.path_importer_cache.pop(_HOOK, None)


def _chain() -> None:
    """Runs the user's own sitecustomize, if any; else reports that there is none, as the interpreter expects."""
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")


def _runs_the_command() -> bool:
    """Returns whether the job's command is this interpreter's program.

    Others have the spawner's environment, too: what --python runs before the command or around it, or a .pth file
    starts. They go on as without us, and the interpreter that they start finds all that a spawner needs.
    """
    mark = os.fsencode(os.environ.get("HOLDFAST_SPAWNER_COMMAND", ""))  # "": a supervisor before an upgrade sets none
    with open("/proc/self/cmdline", "rb") as file:
        words = [b"", *file.read().split(b"\0")]
    if mark not in b" ".join(words):
        return False
    # Without the interpreter and its options. Python 3.6, which is refused, has no argv yet.
    program = words[-len(sys.argv) - 1 :] if hasattr(sys, "argv") else words
    is_own = program is words or b" ".join([b"", *program]).startswith(mark)
    if not is_own:
        _pass_descriptors_on()
    return is_own


def _pass_descriptors_on() -> None:
    """Makes the processes that this wrapper starts inherit what it has inherited: `subprocess` closes all else."""
    import subprocess

    inherited = [int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
    popen: Any = subprocess.Popen
    begin = popen.__init__

    def begin_with_all(self: object, *args: object, **options: object) -> None:
        if options.get("close_fds", True):
            asked: Any = options.get("pass_fds", ())
            options["pass_fds"] = {*asked, *filter(_is_inheritable, inherited)}
        begin(self, *args, **options)

    popen.__init__ = begin_with_all


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False  # closed


def _be_the_spawner() -> None:
    """Runs the spawner. Returns only in forked workers, and in programs other than the job's command."""
    try:
        if _runs_the_command():
            _load_spawner()(_HOOK)
    except BaseException as error:  # noqa: BLE001 - the interpreter would drop it and run the script here, as no rank
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)


_HOOK = os.path.dirname(os.path.abspath(__file__))
if "HOLDFAST_SPAWNER_FD" in os.environ:
    _remove_hook()
    _be_the_spawner()
    _chain()
