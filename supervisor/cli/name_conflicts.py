"""Does something else have a name of ours: the package `supervisor`, the command `holdfast`, a folder beside a script?

Each question reads one file at most. The owner's name is looked up only if there is another owner.
"""

from __future__ import annotations

import os
import sys

import supervisor

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # of the package
_COMMAND = "holdfast"
_OWN_ENTRIES = ("holdfast_command", "supervisor.cli")  # what the command's script imports; the second of old ones
_REINSTALL = "pip install --force-reinstall --no-deps holdfast-torch, from its clone or wheel"


def fault() -> str:
    """Returns why this package is not complete, "" if it is."""
    if hasattr(supervisor, "__version__"):
        return ""
    owner = "supervisord is installed there, too" if _has_supervisord() else "its first file is missing"
    return (
        f"cannot run: another distribution has overwritten or removed files of the package 'supervisor' in {_FOLDER} "
        f"({owner}); {_REINSTALL}, or give each an environment of its own"
    )


def warning(program: str) -> str:
    """Returns what will go wrong later, "" if nothing. `program` is the command as it was started (sys.argv[0])."""
    if _has_supervisord():
        return (
            f"the distribution 'supervisor' (supervisord) has its files in {_FOLDER}, too: upgrading or removing "
            "one of the two breaks the other; use an environment for each"
        )
    script = os.path.join(os.path.dirname(sys.executable), _COMMAND)
    if os.path.basename(program) == _COMMAND or not _is_foreign(script):
        return ""
    return (
        f"the command {script} is not Holdfast's but belongs to {_owner_of_command()}; use an environment for each, or "
        f"remove that one, then {_REINSTALL}"
    )


def hidden_client(folder: str) -> str:
    """Returns what a script in `folder` gets for `import worker_client`, "" if it gets ours."""
    ours = os.path.join(os.path.dirname(_FOLDER), "worker_client")
    for name in ("worker_client", "worker_client.py"):
        path = os.path.join(folder, name)
        if os.path.exists(path) and os.path.realpath(path) != os.path.realpath(ours):
            return (
                f"{path} hides Holdfast's worker_client from the script; rename it if the script sends heartbeats or "
                "restarts inside the process"
            )
    return ""


def _has_supervisord() -> bool:
    return os.path.exists(os.path.join(_FOLDER, "supervisord.py"))


def _is_foreign(script: str) -> bool:
    try:
        with open(script, encoding="utf-8", errors="replace") as file:
            text = file.read(4096)
    except OSError:
        return False
    return not any(entry in text for entry in _OWN_ENTRIES)


def _owner_of_command() -> str:
    from importlib import metadata  # Costs a look at each distribution: only where there is another owner.

    for entry in metadata.entry_points(group="console_scripts", name=_COMMAND):
        if not entry.value.startswith(_OWN_ENTRIES):
            return f"the distribution '{entry.dist.name}'" if entry.dist else f"'{entry.value}'"
    return "another distribution"
