"""With which command line, environment and settings does a supervisor start the spawner of one job?

Both sides of the spawner link use this module; standard library only. The spawner starts with the command line that
the user would have typed (`PYTHON -u script.py args…`); docs/decisions/0002-spawner-starts-as-the-script.md says why.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

FD_VARIABLE = "HOLDFAST_SPAWNER_FD"
SETTINGS_VARIABLE = "HOLDFAST_SPAWNER_SETTINGS"
COMMAND_VARIABLE = "HOLDFAST_SPAWNER_COMMAND"  # tells the spawner from other programs with its environment
_COMMAND_CHARACTERS_MAX = 1000  # a variable holds less than all arguments together may
# torchrun's macro, read as string.Template does: $$ is a $, and any other name stays unchanged.
_LOCAL_RANK_MACRO = re.compile(r"\$(?:(\$)|local_rank(?![_a-zA-Z0-9])|\{local_rank\})")


class SpawnerSettings(NamedTuple):
    """What a spawner must know before its first message.

    Passed as JSON in a memory file, whose number is in an environment variable: one variable, or one argument, holds
    128 KiB at most, but all arguments of a command together may be longer.
    """

    job_id: str
    command: tuple[str, ...]  # script, module or command, then its arguments
    entry: str = "script"  # "script", "module" or "command"
    python: str = ""  # the job's interpreter; "": the caller's
    method: str = "auto"  # "auto": fork if the script can't notice; "fork": always; "exec"
    preload: str = "auto"  # "auto", "torch", "none", or modules separated by commas
    private: bool = True  # True: ends its job within 5 s if its supervisor is lost
    supervisor_return_timeout_s: float = 60.0  # not private: how long to wait for a lost supervisor
    exit_record_dir: str = ""  # where exits are recorded while no supervisor listens; "": nowhere
    log_dir: str = ""  # must be writable before the first start, else the command is refused; "": not checked
    cgroup: bool = True  # use cgroup v2 if it is writable
    # The soft limit on open files that workers must find, and the one that the supervisor raised it to; (): unchanged.
    open_files: tuple[int, ...] = ()
    may_restart: bool = True  # False: no cycle follows, so nothing is worth loading ahead
    learned: tuple[str, ...] = ()  # steps to carry out in the background: what earlier workers imported
    learned_folders: tuple[str, ...] = ()
    # Not private: a bound socket where a returning supervisor finds the spawner (-1: none), a file with a copy of what
    # is kept for that supervisor, and the descriptors of the job's claim, which are passed to it.
    return_fd: int = -1
    keep_path: str = ""
    claim_fds: tuple[int, ...] = ()
    # The memory file with a page for each worker (auto_heartbeat_slots.py), and the silence that is sought; -1: none.
    watch_fd: int = -1
    watch_limit_s: float = 0.0
    console_line_fd: int = -1  # of the supervisor's ConsoleLine, on whose own stdout and stderr it prints; -1: none
    learn_after_s: float = 5.0  # once no worker has imported anything for this long, all imports are learned
    # Set by spawner_command and by the spawner itself:
    import_folders: tuple[str, ...] = ()  # the folders that hold worker_client/ and holdfast_wire/
    python_path: str | None = None  # the user's PYTHONPATH; None: not set
    decided: str = ""  # why an earlier start of this spawner was abandoned for this one
    lost: str = ""  # the same for Ready.lost

    def to_json(self) -> str:
        return json.dumps(self._asdict(), separators=(",", ":"))


class SpawnerCommand(NamedTuple):
    argv: tuple[str, ...]  # argv[0] is the program to execute
    env: dict[str, str]
    settings_fd: int = -1  # the spawner needs it under this number; who starts it closes it; -1: there is none


def settings_file(settings: SpawnerSettings) -> int:
    """Returns a descriptor of a memory file with the settings, not inheritable. Raises OSError."""
    descriptor = os.memfd_create("holdfast-spawner-settings", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(settings.to_json().encode())
    return descriptor


def take_settings(descriptor: int) -> SpawnerSettings:
    """Reads the settings file and closes it. Raises OSError; ValueError, KeyError or TypeError for other contents."""
    with open(descriptor, "rb") as file:
        file.seek(0)  # The writer's position is ours.
        return settings_from_json(file.read().decode())


def settings_from_json(text: str) -> SpawnerSettings:
    """Returns the settings in `text`. Raises ValueError, KeyError or TypeError if `text` is anything else."""
    body: dict[str, object] = json.loads(text)
    known = {name: value for name, value in body.items() if name in SpawnerSettings._fields}  # not of the next version
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return SpawnerSettings(**values)  # pyright: ignore[reportArgumentType]


def spawner_command(settings: SpawnerSettings, env: Mapping[str, str], *, link_fd: int) -> SpawnerCommand:
    """Returns the command line and environment of a spawner.

    `env` is the job's final environment without the rank variables. The caller passes `link_fd` and the result's
    `settings_fd` under the same numbers (pass_fds) and the job's own stdin, stdout and stderr, and starts the process
    in the job's folder. Raises OSError if there is no descriptor left.
    """
    import sys  # Late: only the supervisor needs the default interpreter.

    python = settings.python or sys.executable
    wire = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    client = _client_folder(wire)
    folders = tuple(dict.fromkeys((os.path.dirname(client), wire)))
    python_path = env.get("PYTHONPATH")
    whole = settings._replace(python=python, import_folders=folders, python_path=python_path)
    settings_fd = settings_file(whole)
    child_env = dict(env) | {FD_VARIABLE: str(link_fd), SETTINGS_VARIABLE: str(settings_fd)}
    if settings.entry == "command" or settings.method == "exec":
        return SpawnerCommand(plain_argv(whole), child_env, settings_fd)
    hook = os.path.join(client, "spawner", "hook")
    child_env["PYTHONPATH"] = f"{hook}{os.pathsep}{python_path}" if python_path else hook
    child_env[COMMAND_VARIABLE] = command_mark(whole)
    return SpawnerCommand(worker_argv(whole), child_env, settings_fd)


def command_mark(settings: SpawnerSettings) -> str:
    """Returns what the command line of the spawner contains, with a space for each NUL; the hook looks for it.

    The interpreter may be a script that runs other Python programs before, with the same environment. It may add
    options and arguments to the command.
    """
    return f" {' '.join(settings.command)} "[:_COMMAND_CHARACTERS_MAX]


def worker_argv(settings: SpawnerSettings, local_rank: int | None = None) -> tuple[str, ...]:
    """Returns what a user would type to start one worker; without a local rank, the arguments keep their macros."""
    name = settings.command[:1]
    arguments = settings.command[1:] if local_rank is None else worker_arguments(settings, local_rank)
    if settings.entry == "command":
        return (*name, *arguments)
    if settings.entry == "module":
        return (settings.python, "-u", "-m", *name, *arguments)
    return (settings.python, "-u", *name, *arguments)


def worker_arguments(settings: SpawnerSettings, local_rank: int) -> tuple[str, ...]:
    """Returns the arguments after script, module or command, with ${local_rank} replaced as torchrun does."""
    return tuple(
        _LOCAL_RANK_MACRO.sub(lambda found: "$" if found[1] else str(local_rank), argument)
        for argument in settings.command[1:]
    )


def plain_argv(settings: SpawnerSettings) -> tuple[str, ...]:
    """Returns the command line of an exec-only spawner: isolated (-I -S) from the job's environment when it imports."""
    main = os.path.join(settings.import_folders[0], "worker_client", "spawner", "__main__.py")
    return (settings.python, "-I", "-S", main)


def _client_folder(beside: str) -> str:
    """Returns the folder of worker_client/ in this installation or checkout; any other importable one is foreign."""
    for folder in (beside, os.path.dirname(beside)):
        client = os.path.join(folder, "worker_client")
        if os.path.exists(os.path.join(client, "spawner", "hook")):
            return client
    raise ModuleNotFoundError(
        f"cannot start a spawner: {beside} has no worker_client; reinstall holdfast-torch there", name="worker_client"
    )
