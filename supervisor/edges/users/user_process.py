"""How does root start a supervisor that has the rights of one user, and nothing of root's?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.peer_identity import Identity, Limits, raise_hard, user_variables
from supervisor.edges.users import become_user
from supervisor.edges.users.user_folders import Record, UserFolder
from supervisor.errors import NotNowError

BECOME_USER = Path(become_user.__file__)
PROGRAM = Path(__file__).parents[3] / "holdfast_command.py"  # by its path, so that nothing of the user's is imported
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_ON = ("LANG", "LC_ALL", "TZ", "JOURNAL_STREAM")  # from root's environment; all others may be root's secrets


class StartedSupervisor(msgspec.Struct, frozen=True):
    process: subprocess.Popen[bytes] | None  # None: it is not our child
    record: Record


def start_supervisor(
    identity: Identity, limits: Limits, folder: UserFolder, arguments: Sequence[str] = ()
) -> StartedSupervisor:
    """Starts it as a child of this process. Blocks on the user database and for an exec. Raises HoldfastError.

    The supervisor has the groups and hard limits of the process that asked, a fresh environment, and only the door of
    root's descriptors.
    """
    folder.make(identity)
    places = ("--socket-dir", str(folder.own), "--state-dir", str(folder.state_dir))
    try:
        with ExitStack() as undo:
            door = folder.listen()
            undo.callback(door.close)
            process = subprocess.Popen(
                command_of(identity, limits, door.fileno(), (*places, *arguments)),
                env=environment_of(identity),
                cwd="/",
                stdin=subprocess.DEVNULL,
                pass_fds=(door.fileno(),),
                start_new_session=True,
            )
            with ExitStack() as failed:
                failed.callback(process.wait)
                failed.callback(process.kill)
                found = process_table.look_up(process.pid)
                record = Record(identity, limits, process.pid, found.started_ticks if found is not None else 0)
                folder.note(record)
                failed.pop_all()
            return StartedSupervisor(process, record)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NotNowError(f"cannot start the supervisor of user id {identity.uid}: {error}; see the log") from error


def command_of(identity: Identity, limits: Limits, door_fd: int, arguments: Sequence[str]) -> list[str]:
    """Returns the command that root executes: it drops root's rights and becomes the supervisor."""
    wanted = {"uid": identity.uid, "gid": identity.gid, "groups": identity.groups, "limits": limits}
    return [
        sys.executable, "-I", "-S", str(BECOME_USER), json.dumps(wanted),
        sys.executable, "-I", str(PROGRAM), "serve-user", "--door-fd", str(door_fd), *arguments,
    ]  # fmt: skip


def environment_of(identity: Identity) -> dict[str, str]:
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {"PATH": PATH, **kept, **user_variables(identity)}


def is_running(record: Record) -> bool:
    found = process_table.look_up(record.pid)
    return found is not None and found.started_ticks == record.started_ticks and found.state not in "ZX"


def raise_limits(record: Record, limits: Limits) -> None:
    """Raises the limits after a process with the same user and groups has shown higher ones."""
    with suppress(OSError, ValueError):
        if is_running(record):
            raise_hard(record.pid, limits)
