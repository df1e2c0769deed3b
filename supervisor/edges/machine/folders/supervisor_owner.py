"""Whose supervisor answers in a socket directory, and may it have what is only for this user's own, or root's?

`holdfast run` hands it a command with its whole environment, and torchrun lets it lead. A socket directory may be named
by mistake, or lie where another user has taken its name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from holdfast_wire import socket_user

from supervisor.edges.machine.folders import socket_dir
from supervisor.edges.machine.processes import socket_probe
from supervisor.errors import NoSupervisorError

TRUST_VARIABLE = "HOLDFAST_TRUST_UNMAPPED"
Fault = tuple[str, str]  # why nothing may be sent there, and what to do
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def owner(socket_path: Path, listener_uid: int) -> int:
    """Returns whose supervisor answers there. Raises OSError.

    Root's process listens for the supervisors of all users, and hands each connection on. To a user it hands those of
    that user; to root, those of the user after whom it has named the socket's folder.
    """
    if listener_uid != 0:
        return listener_uid
    if os.geteuid() != 0:
        return os.geteuid()
    folder = socket_path.parent
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0:
        return found.st_uid  # Somebody else's link to a socket of root's.
    uid = folder.name.partition(".")[0]
    is_of_user = folder.parent.name == socket_dir.USERS and folder.parent.lstat().st_uid == 0 and uid.isdecimal()
    return int(uid) if is_of_user else 0


@contextmanager
def opened(folder: Path) -> Generator[Path]:
    """Yields a path to the socket directory of a supervisor of this user or root.

    The path leads to the same directory as long as it is open, whatever happens to the directory's name. Raises
    NoSupervisorError if the supervisor may be another user's, or if none answers.
    """
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NoSupervisorError(
            f"cannot use the supervisor in {folder}: {error.strerror or error}; name another with --socket-dir"
        ) from error
    try:
        held = Path(f"/proc/self/fd/{descriptor}")
        try:
            fault = _folder_fault(os.fstat(descriptor)) or _supervisor_fault(held)
        except OSError as error:
            fault = error.strerror or str(error), "check that it runs"
        if fault:
            why, remedy = fault
            raise NoSupervisorError(f"cannot use the supervisor in {folder}: {why}; {remedy}")
        yield held
    finally:
        os.close(descriptor)


def _folder_fault(found: os.stat_result) -> Fault | None:
    """Returns why others may put a socket of theirs there; None if they can't."""
    if fault := _fault("the folder", found.st_uid):
        return fault
    if found.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        return f"others may write to that folder, whose mode is {mode:04o}", "take that right from them: chmod go-w"
    return None


def _supervisor_fault(held: Path) -> Fault | None:
    listener = socket_probe.connect(held / socket_dir.CONTROL_SOCKET, timeout_s=socket_dir.PROBE_TIMEOUT_S)
    return _fault("it", owner(Path(os.readlink(held)) / socket_dir.CONTROL_SOCKET, listener.uid))


def _fault(what: str, uid: int) -> Fault | None:
    """Returns why what belongs to that user must get nothing; None if it may."""
    own = os.geteuid()
    ours = f"user id {own} or root" if own else "root"
    if socket_user.is_unmapped(uid):  # This user's own id may be such a one, too, and then says nothing either.
        if os.environ.get(TRUST_VARIABLE) == "1":
            return None
        return (
            f"{what} belongs to a user without an id in this container (shown as {uid}), who may be anybody",
            f"if only the node's root serves there, set {TRUST_VARIABLE}=1",
        )
    if socket_user.is_this_user_or_root(uid):
        return None
    return (
        f"{what} belongs to user id {uid}, not {ours}, and would get this command and its environment",
        f"check --socket-dir, {socket_dir.SOCKET_DIR_VARIABLE} and XDG_RUNTIME_DIR",
    )
