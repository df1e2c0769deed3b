"""What does the unit of a user's supervisor do first, while it still runs as root?

It reads the record of root's process, gives the unit's control group and the user's folder to the user, opens the
hand-over socket, and executes privilege_drop.py, which drops root's rights.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from supervisor.edges.machine.folders import socket_dir
from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.edges.machine.processes import control_group, process_table
from supervisor.edges.machine.processes.peer_identity import user_variables
from supervisor.edges.users.user_folders import UserFolder
from supervisor.edges.users.user_process import command_of, environment_of
from supervisor.errors import ConfigurationError

FROM_SYSTEMD = (
    "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "INVOCATION_ID",
)  # fmt: skip
DELEGATED = ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control")


def execute(service_dir: Path, instance: str) -> None:
    """Executes the program and never returns. `instance`: see user_units.instance_of. Raises HoldfastError."""
    folder = UserFolder(service_dir / socket_dir.USERS / instance.replace("-", ".", 1), Path())
    record = folder.record()
    if record is None:
        raise ConfigurationError(
            f"cannot start a supervisor for {instance}: there is no {folder.path / 'record.json'}; "
            "let holdfast daemon --users start this unit when that user comes"
        )
    try:
        folder.give(record.identity)
        handover_fd = folder.listen().detach()
        os.set_inheritable(handover_fd, True)
        own = process_table.look_up(os.getpid())
        started_ticks = own.started_ticks if own is not None else 0
        folder.note_process(os.getpid(), started_ticks, record.variables)
        variables = record.variables or user_variables(record.identity)
        folder.note_process(os.getpid(), started_ticks, variables)  # The next one waits for no user database.
    except OSError as error:
        what = f"prepare the folder of user id {record.identity.uid} in {folder.path}"
        raise kernel_error_remedies.refusal(what, error, otherwise="check who owns it") from error
    if record.identity.uid:
        _leave_cgroup_to(record.identity.uid)
    kept = {name: os.environ[name] for name in FROM_SYSTEMD if name in os.environ}
    os.chdir("/")
    os.execve(
        sys.executable,
        command_of(record.identity, record.limits, handover_fd, record.arguments),
        environment_of(variables) | kept,
    )


def _leave_cgroup_to(uid: int) -> None:
    """Lets each cycle of a job have a group of its own; without one, each rank has a session."""
    with suppress(OSError):
        for group in control_group.own_groups()[:1]:
            for name in DELEGATED:
                os.chown(group / name, uid, -1)
