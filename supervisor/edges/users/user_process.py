"""With which command, environment and descriptors does root start a user's supervisor, and how does root end it?"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import anyio
import msgspec

from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.peer_identity import Identity, Limits, highest, raise_hard, user_variables
from supervisor.edges.machine.processes.process_table import ProcessEntry
from supervisor.edges.users import privilege_drop
from supervisor.edges.users.user_folders import Record, UserFolder
from supervisor.errors import ExhaustedError, NotNowError

PRIVILEGE_DROP = Path(privilege_drop.__file__)
PROGRAM = Path(__file__).parents[3] / "holdfast_command.py"  # by its path, so that nothing of the user's is imported
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KILL_ROUNDS_MAX = 64  # a process may fork between the look and the kill: repeat, but not endlessly
# From root's environment, with PROXIES; all others may be root's secrets.
PASSED_ON = ("LANG", "LC_ALL", "TZ", "JOURNAL_STREAM", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
# As a user can read what that user's supervisor has got, a proxy with a password is left out.
PROXIES = (
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
)  # fmt: skip
_log = logging.getLogger("holdfast.users")


class StartedSupervisor(msgspec.Struct, frozen=True):
    process: subprocess.Popen[bytes] | None  # None: it is not our child
    record: Record


def start_supervisor(
    identity: Identity, limits: Limits, folder: UserFolder, arguments: Sequence[str] = ()
) -> StartedSupervisor:
    """Starts it as a child of this process. Blocks on the user database and for an exec. Raises HoldfastError.

    The supervisor has the groups and hard limits of the process that asked, a fresh environment, and only the hand-over
    socket of root's descriptors.
    """
    folder.make(identity)
    former = folder.record()  # Jobs of one that is started again wait for no user database.
    variables = (former.variables if former is not None else {}) or user_variables(identity)
    places = ("--socket-dir", str(folder.own), "--state-dir", str(folder.state_dir))
    try:
        with ExitStack() as undo:
            folder.give(identity)
            handover = folder.listen()
            undo.callback(handover.close)
            process = subprocess.Popen(
                command_of(identity, limits, handover.fileno(), (*places, *arguments)),
                env=environment_of(variables),
                cwd="/",
                stdin=subprocess.DEVNULL,
                # Root's terminal would be the user's to read and to write. What it says is in its own log, too.
                stdout=subprocess.DEVNULL if os.isatty(1) else None,
                stderr=subprocess.DEVNULL if os.isatty(2) else None,
                pass_fds=(handover.fileno(),),
                start_new_session=True,
            )
            with ExitStack() as failed:
                failed.callback(process.wait)
                failed.callback(process.kill)
                found = process_table.look_up(process.pid)
                started_ticks = found.started_ticks if found is not None else 0
                record = Record(identity, limits, process.pid, started_ticks, variables=variables)
                folder.note(record)
                failed.pop_all()
            return StartedSupervisor(process, record)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        remedy = kernel_error_remedies.remedy(error)
        kind = ExhaustedError if remedy else NotNowError
        raise kind(
            f"cannot start the supervisor of user id {identity.uid}: {error}; {remedy or 'see the log'}"
        ) from error


def command_of(identity: Identity, limits: Limits, handover_fd: int, arguments: Sequence[str]) -> list[str]:
    """Returns the command that root executes: it drops root's rights and is then the supervisor."""
    wanted = {"uid": identity.uid, "gid": identity.gid, "groups": identity.groups, "limits": limits}
    return [
        sys.executable, "-I", "-S", str(PRIVILEGE_DROP), json.dumps(wanted),
        str(PROGRAM), "serve-user", "--door-fd", str(handover_fd), *arguments,
    ]  # fmt: skip


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a supervisor whose user has these variables."""
    kept = {name: os.environ[name] for name in (*PASSED_ON, *PROXIES) if name in os.environ}
    for name in PROXIES:
        if "@" in kept.get(name, ""):
            del kept[name]
            _log.warning(
                "cannot pass %s on to a user's supervisor: it may contain a password, which the user could read; "
                "name a proxy that needs none",
                name,
            )
    return {"PATH": PATH, "HOME": "/", **kept, **variables}


def is_running(record: Record) -> bool:
    found = _found(record)
    return found is not None and found.state not in "ZX"


def is_stopped(record: Record) -> bool:
    """Returns whether a signal or a tracer has stopped it."""
    found = _found(record)
    return found is not None and found.state in "Tt"


def _found(record: Record) -> ProcessEntry | None:
    found = process_table.look_up(record.pid)
    return found if found is not None and found.started_ticks == record.started_ticks else None


async def until_gone(record: Record, timeout_s: float) -> bool:
    """Waits for the end of the process, all of its threads, in none of ours; returns whether it has ended."""
    try:
        descriptor = os.pidfd_open(record.pid)
    except (OSError, ValueError):
        return not is_running(record)
    try:
        if _found(record) is None:
            return True
        with anyio.move_on_after(timeout_s):
            await anyio.wait_readable(descriptor)
            return True
        return False
    finally:
        os.close(descriptor)


def kill(record: Record) -> None:
    """Kills the supervisor. Its jobs continue, for the next one."""
    found = _found(record)
    if found is not None:
        process_table.send(found, signal.SIGKILL)


def kill_all(record: Record) -> None:
    """Kills the supervisor with all that it has started. Reads all of /proc, several times: blocks.

    Supervisors and spawners are child subreapers. So a process whose parent is killed stays a descendant as long as the
    supervisor, which is stopped first, lives.
    """
    found = _found(record)
    if found is None:
        return
    process_table.send(found, signal.SIGSTOP)
    killed: set[tuple[int, int]] = set()
    for _ in range(KILL_ROUNDS_MAX):
        below = process_table.descendants(record.pid)
        fresh = [each for each in below if (each.pid, each.started_ticks) not in killed]
        if not fresh:
            break
        for each in fresh:
            killed.add((each.pid, each.started_ticks))
            process_table.send(each, signal.SIGKILL)
    process_table.send(found, signal.SIGKILL)


def raise_limits(record: Record, limits: Limits) -> Record:
    """Raises the limits after a process with the same user and groups has shown higher ones; returns the new record."""
    raised = highest(record.limits, limits)
    if raised == record.limits:
        return record
    if is_running(record):
        raise_hard(record.pid, raised)
    return msgspec.structs.replace(record, limits=raised)
