"""Which directory holds a supervisor's sockets, what is where in it, and is it safe to use?

A socket directory is a 0700 directory of our own: its mode decides who may connect before any byte is read. The files
that a container needs, the worker socket and the tokens, are in a subfolder, so that a mount of it shows nothing else.
control.sock stays outside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from holdfast_wire import private_files

from supervisor.edges.machine.folders import default_dirs
from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.edges.machine.processes import socket_probe
from supervisor.errors import ConfigurationError, NoSupervisorError

SOCKET_DIR_VARIABLE = "HOLDFAST_SOCKET_DIR"
WORKER_SOCKET = "worker.sock"
CONTROL_SOCKET = "control.sock"
WORKER_DIR = "worker"  # the folder that containers mount
TOKENS = "tokens"
SPAWNERS = "spawners"  # where a supervisor that comes back finds them
USERS = "users"  # in the socket directory of a service for several users: one folder for each supervisor
OWN = "own"  # in that folder: the socket directory of the user's supervisor
SYSTEM_DIR = Path("/run/holdfast")
SOCKET_PATH_BYTES_MAX = 107  # sun_path without its final zero
PROBE_TIMEOUT_S = 1.0
_LONGEST_NAME_BYTES = len(f"/{WORKER_DIR}/{WORKER_SOCKET}")


class Candidate(msgspec.Struct, frozen=True):
    """A directory in which a supervisor may serve. `explicit`: the user named it, so no other directory will do."""

    path: Path
    explicit: bool


# --- where ---------------------------------------------------------------------------------------------------------


def candidates(explicit: str | None = None, environment: Mapping[str, str] | None = None) -> tuple[Candidate, ...]:
    """Returns where a command looks for a node's supervisor, in order. An explicit directory is the only one."""
    variables = os.environ if environment is None else environment
    chosen = explicit or variables.get(SOCKET_DIR_VARIABLE)
    if chosen:
        return (Candidate(Path(chosen).absolute(), explicit=True),)
    user_dir = default_dirs.runtime_dir(variables)
    places = [user_dir / "holdfast"] if user_dir is not None else []
    return tuple(Candidate(path, explicit=False) for path in (*places, SYSTEM_DIR))


def service_dir_for_daemon(explicit: str | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Returns where `holdfast daemon` serves. Creates nothing. Raises ConfigurationError."""
    variables = os.environ if environment is None else environment
    chosen = explicit or variables.get(SOCKET_DIR_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return SYSTEM_DIR
    user_dir = default_dirs.runtime_dir(variables)
    if user_dir is None:
        raise ConfigurationError("cannot choose a socket directory: XDG_RUNTIME_DIR is not set; give --socket-dir")
    return user_dir / "holdfast"


def sockets_of_users(users: Path) -> list[Path]:
    """Returns the control sockets of a service's supervisors that this user may ask; for root all but its own.

    Root's links to the others are in folders that only root can change.
    """
    uid = os.geteuid()
    try:
        names = os.listdir(users)
    except OSError:
        return []
    if uid == 0:
        return [users / name / CONTROL_SOCKET for name in names if not name.startswith("0.")]
    return [users / name / OWN / CONTROL_SOCKET for name in names if name.startswith(f"{uid}.")]


def answers(path: Path) -> bool:
    """Returns whether a process accepts connections at this socket. Blocks for PROBE_TIMEOUT_S at most."""
    try:
        socket_probe.connect(path, timeout_s=PROBE_TIMEOUT_S)
    except OSError:
        return False
    return True


def nobody_answers(path: Path) -> NoSupervisorError:
    """Returns the error to raise if the user named a directory and `answers` is false."""
    if of_another := closed_by_another(path):
        return of_another
    return NoSupervisorError(
        f"cannot reach a supervisor in {path}: nobody answers there; "
        f"start one with holdfast daemon --socket-dir {path}, or leave --socket-dir and HOLDFAST_SOCKET_DIR out"
    )


def closed_by_another(path: Path) -> NoSupervisorError | None:
    """Returns the error to raise for a directory that the user named and may not enter, since it is another user's."""
    try:
        owner = path.stat().st_uid
    except OSError:
        return None
    if owner == os.geteuid() or os.access(path, os.X_OK, effective_ids=True):
        return None
    return NoSupervisorError(
        f"cannot reach a supervisor in {path}: it belongs to user id {owner}, not {os.geteuid()}, and is closed to "
        "others; name a directory of your own, or leave --socket-dir and HOLDFAST_SOCKET_DIR out"
    )


# --- what is where in it -------------------------------------------------------------------------------------------


def worker_socket(path: Path) -> Path:
    """Returns the real worker socket, which workers get. WORKER_SOCKET beside control.sock is a link to it."""
    return path / WORKER_DIR / WORKER_SOCKET


def tokens_dir(path: Path) -> Path:
    return path / WORKER_DIR / TOKENS


def holder_of(worker_socket_path: Path) -> Path:
    """Returns the socket directory to which a worker socket belongs."""
    return worker_socket_path.parent.parent


# --- is it safe ----------------------------------------------------------------------------------------------------


def make(path: Path) -> None:
    """Creates the directory with mode 0700, or checks an existing one. Raises as `make_closed`."""
    make_closed(path)
    check(path)


def check(path: Path) -> None:
    """Raises ConfigurationError unless it is our own, closed to others, and short enough for a socket's path."""
    _check_closed(path)
    if not longest_socket_path_fits(path):
        longest = len(os.fsencode(path)) + _LONGEST_NAME_BYTES
        raise ConfigurationError(
            f"cannot use socket directory {path}: the path of a socket in it has {longest} bytes, "
            f"the limit is {SOCKET_PATH_BYTES_MAX}; choose a shorter one with --socket-dir"
        )


def longest_socket_path_fits(path: Path) -> bool:
    return len(os.fsencode(path)) + _LONGEST_NAME_BYTES <= SOCKET_PATH_BYTES_MAX


def make_closed(path: Path) -> None:
    """Creates or checks a directory without sockets. Raises ConfigurationError; ExhaustedError if a disk is full."""
    try:
        private_files.make_folder(path)
    except OSError as error:
        raise kernel_error_remedies.refusal(
            f"make socket directory {path}", error, otherwise="choose another with --socket-dir"
        ) from error
    _check_closed(path)


def _check_closed(path: Path) -> None:
    fault = private_files.folder_fault(path)
    if fault:
        remedy = "" if "chmod" in fault else "; choose another with --socket-dir"
        raise ConfigurationError(f"cannot use socket directory {path}: {fault}{remedy}")
