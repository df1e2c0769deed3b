"""Which package `supervisor` does the command `holdfast` run? The one beside this file, whatever else has that name.

`supervisor` is also the import name of a process control system on the package index, and of folders in people's own
projects; docs/decisions/0015-names.md says who owns what. Standard library only: nothing of ours is loaded before it.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGURATION_ERROR = 78
TRY_AGAIN = 75
# What a command needs: far more than it takes, so that nothing in it has to expect that it runs out.
ADDRESSES_BYTES = 128 << 20
FILES = 16
FILES_OF_SUPERVISORS = 48
_M_ARENA_MAX = -8  # of glibc: else each thread takes up to 128 MiB of addresses
SUPERVISORS = ("run", "daemon")  # they raise the limit on open files to the hard one


def main() -> int:
    """The console script `holdfast`, also to be run as a file. Returns the exit code."""
    end_silently_while_loading()
    if refused := refused_for_room(sys.argv[1:]):
        return refused
    gc.disable()  # What is loaded stays, and a start waits for it: `supervisor.cli` enables it for the command itself.
    try:
        load_own("supervisor")
        command_line = import_module("supervisor.cli")
    except ModuleNotFoundError as error:
        sys.stderr.write(f"holdfast: cannot run: {missing(error)}\n")
        return CONFIGURATION_ERROR
    return command_line.main()


def end_silently_while_loading() -> None:
    """Lets Ctrl-C end this process without a traceback; `supervisor.cli` handles it from the command on."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def refused_for_room(arguments: list[str]) -> int:
    """Returns 0 if this process has room for the command; else says what it lacks, and returns the exit code."""
    if why_not := no_room(arguments):
        sys.stderr.write(f"holdfast: {why_not}\n")
        return TRY_AGAIN
    return 0


def no_room(arguments: list[str]) -> str:
    """Returns why the limits of this process leave no room for a command, "" if they do.

    A program that meets them later fails anywhere: an import, a thread, the loop of a supervisor whose job runs.
    """
    command = arguments[0] if arguments else ""
    what = f"cannot run holdfast {command}".rstrip()
    try:
        import resource

        limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[command in SUPERVISORS]
        if limit_bytes != resource.RLIM_INFINITY:
            import ctypes
            import mmap

            with suppress(AttributeError):  # not glibc: its threads take no addresses for memory of their own
                ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)

            mmap.mmap(-1, ADDRESSES_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ).close()
    except (MemoryError, ImportError, OSError):
        return (
            f"{what}: the limit on addresses (ulimit -v) leaves no room for the {ADDRESSES_BYTES >> 20} MiB that it "
            "needs; raise that limit"
        )
    needed = FILES_OF_SUPERVISORS if command in SUPERVISORS else FILES
    if files != resource.RLIM_INFINITY and files < needed:
        return f"{what}: at most {files} files may be open (ulimit -n), and it needs {needed}; raise that limit"
    return ""


def load_own(package: str) -> None:
    """Imports it from this file's folder, ahead of PYTHONPATH, the current folder and other distributions."""
    sys.path.insert(0, HERE)
    try:
        import_module(package)
    finally:
        sys.path.remove(HERE)


def missing(error: ModuleNotFoundError) -> str:
    name = error.name or ""
    if name.partition(".")[0] in ("supervisor", "worker_client", "holdfast_wire"):
        return (
            f"module {name} is missing in {HERE}: something has removed files of the distribution holdfast-torch, as "
            "installing or removing another one with a package 'supervisor' does; reinstall holdfast-torch there"
        )
    return (
        f"module {name} is not installed for {sys.executable}; holdfast-torch is needed with its extra "
        "[supervisor]: in a clone, pip install '.[supervisor]'"
    )


if __name__ == "__main__":
    sys.exit(main())
