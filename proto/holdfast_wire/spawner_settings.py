"""With which command line, environment and settings does a supervisor start the spawner of one job?

Shared by both sides of the spawner link; standard library only. The spawner is started as what the user would have
typed (`PYTHON -u script.py args…`): docs/decisions/0002-spawner-starts-as-the-script.md says why.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

FD_VARIABLE = "HOLDFAST_SPAWNER_FD"
SETTINGS_VARIABLE = "HOLDFAST_SPAWNER_SETTINGS"
# torchrun's macro, as string.Template reads it: $$ is a $, any other name stays as it is.
_LOCAL_RANK_MACRO = re.compile(r"\$(?:(\$)|local_rank(?![_a-zA-Z0-9])|\{local_rank\})")


class SpawnerSettings(NamedTuple):
    """What a spawner must know before its first message. Travels as JSON in one environment variable."""

    job_id: str
    command: tuple[str, ...]  # script, module or command, then its arguments
    entry: str = "script"  # "script", "module" or "command"
    python: str = ""  # the job's interpreter; "": the caller's own
    method: str = "auto"  # "auto": fork where it can't be noticed; "fork": whatever differs; "exec"
    preload: str = "auto"  # "auto", "torch", "none", or modules with commas between them
    private: bool = True  # True: ends its job within 5 s of the loss of its supervisor
    supervisor_return_timeout_s: float = 60.0  # not private: for how long a lost supervisor is waited for
    exit_record_dir: str = ""  # where exits are written while no supervisor listens; "": nowhere
    cgroup: bool = True  # use cgroup v2 where it can be written
    # The soft limit of open files that workers must find, and the one to which the supervisor raised it; (): as it is.
    open_files: tuple[int, ...] = ()
    may_restart: bool = True  # False: there will be no further cycle for which something could be loaded ahead
    learned: tuple[str, ...] = ()  # what earlier workers of this job imported: carry out these steps in the background
    learned_folders: tuple[str, ...] = ()
    # Not private: a bound socket at which a supervisor that comes back finds the spawner (-1: none can), a file that
    # holds what is kept for it, too, and the descriptors of the job's claim, which are handed to it.
    return_fd: int = -1
    keep_path: str = ""
    claim_fds: tuple[int, ...] = ()
    learn_after_s: float = 5.0  # after the last import of a worker, all that they imported is learned
    # Filled in by spawner_command and by the spawner itself:
    import_folders: tuple[str, ...] = ()  # the folders that hold worker_client/ and holdfast_wire/
    python_path: str | None = None  # PYTHONPATH as the user has it; None: not set
    decided: str = ""  # why an earlier start of this spawner was given up for this one
    lost: str = ""  # and that as Ready.lost

    def to_json(self) -> str:
        return json.dumps(self._asdict(), separators=(",", ":"))


class SpawnerCommand(NamedTuple):
    argv: tuple[str, ...]  # argv[0] is the program to execute
    env: dict[str, str]


def settings_from_json(text: str) -> SpawnerSettings:
    """The settings in `text`. Raises ValueError, KeyError or TypeError where it holds something else."""
    body: dict[str, object] = json.loads(text)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in body.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return SpawnerSettings(**values)  # pyright: ignore[reportArgumentType]


def spawner_command(settings: SpawnerSettings, env: Mapping[str, str], *, link_fd: int) -> SpawnerCommand:
    """The command line and environment of a spawner.

    `env` is the job's final environment but for the rank variables. The caller passes `link_fd` on under the same
    number (pass_fds), gives the job's own stdin, stdout and stderr, and starts the process in the job's folder.
    """
    import sys  # Late: only the supervisor's side asks for the default interpreter.

    python = settings.python or sys.executable
    wire = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    client = _client_folder(wire)
    folders = tuple(dict.fromkeys((os.path.dirname(client), wire)))
    python_path = env.get("PYTHONPATH")
    whole = settings._replace(python=python, import_folders=folders, python_path=python_path)
    child_env = dict(env) | {FD_VARIABLE: str(link_fd), SETTINGS_VARIABLE: whole.to_json()}
    if settings.entry == "command" or settings.method == "exec":
        return SpawnerCommand(plain_argv(whole), child_env)
    hook = os.path.join(client, "spawner", "hook")
    child_env["PYTHONPATH"] = f"{hook}{os.pathsep}{python_path}" if python_path else hook
    return SpawnerCommand(worker_argv(whole), child_env)


def worker_argv(settings: SpawnerSettings, local_rank: int | None = None) -> tuple[str, ...]:
    """What a user would have typed to start one worker; with no local rank, the macros are left in the arguments."""
    name = settings.command[:1]
    arguments = settings.command[1:] if local_rank is None else worker_arguments(settings, local_rank)
    if settings.entry == "command":
        return (*name, *arguments)
    if settings.entry == "module":
        return (settings.python, "-u", "-m", *name, *arguments)
    return (settings.python, "-u", *name, *arguments)


def worker_arguments(settings: SpawnerSettings, local_rank: int) -> tuple[str, ...]:
    """What follows script, module or command, with ${local_rank} replaced as torchrun does."""
    return tuple(
        _LOCAL_RANK_MACRO.sub(lambda found: "$" if found[1] else str(local_rank), argument)
        for argument in settings.command[1:]
    )


def plain_argv(settings: SpawnerSettings) -> tuple[str, ...]:
    """The spawner that only executes: isolated (-I -S), so nothing of the job's environment reaches its own imports."""
    main = os.path.join(settings.import_folders[0], "worker_client", "spawner", "__main__.py")
    return (settings.python, "-I", "-S", main)


def _client_folder(beside: str) -> str:
    """worker_client/ of this installation, or of this checkout: another one that can be imported is somebody else's."""
    for folder in (beside, os.path.dirname(beside)):
        client = os.path.join(folder, "worker_client")
        if os.path.exists(os.path.join(client, "spawner", "hook")):
            return client
    raise ModuleNotFoundError(
        f"cannot start a spawner: {beside} has no worker_client; reinstall holdfast-torch there", name="worker_client"
    )
