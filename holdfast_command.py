"""Which package `supervisor` does the command `holdfast` run? The one beside this file, whatever else has that name.

`supervisor` is also the import name of a process control system on the package index, and of folders in people's own
projects; docs/decisions/0015-names.md says who owns what. Standard library only: nothing of ours is loaded before it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGURATION_ERROR = 78


def main() -> int:
    """The console script `holdfast`, also to be run as a file. Returns the exit code."""
    try:
        load_own("supervisor")
        command_line = import_module("supervisor.cli")
    except ModuleNotFoundError as error:
        sys.stderr.write(f"holdfast: cannot run: {missing(error)}\n")
        return CONFIGURATION_ERROR
    return command_line.main()


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
