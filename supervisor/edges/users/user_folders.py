"""Where do the supervisors of a node's users live, and who owns which files there?

Each has a folder owned by root, with the files that root needs to reach it, and in it a folder owned by the user. Root
opens nothing in the latter: root never follows a path that a user can change.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from supervisor.edges.machine import records
from supervisor.edges.machine.folders import socket_dir
from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.edges.machine.own_process.unix_listener import listening
from supervisor.edges.machine.processes.peer_identity import Identity, Limits

HANDOVER_SOCKET = "door.sock"  # where the supervisor takes over its clients' connections; only root may connect
RECORD = "record.json"
PROCESS = "process.json"
RECORD_BYTES_MAX = 64 * 1024
BACKLOG = 64


class Record(msgspec.Struct, frozen=True):
    """A supervisor that was started: if root's process is lost, the next one finds the supervisor by this record."""

    identity: Identity
    limits: Limits
    pid: int = 0  # 0: it starts in its own unit and adds its pid itself
    started_ticks: int = 0
    arguments: tuple[str, ...] = ()  # of the command in that unit
    variables: dict[str, str] = msgspec.field(default_factory=dict[str, str])  # see user_variables; empty: not known


class _Process(msgspec.Struct, frozen=True):
    pid: records.Pid
    started_ticks: records.Ticks
    variables: dict[str, str] = msgspec.field(default_factory=dict[str, str])


class UserFolder(msgspec.Struct, frozen=True):
    """The files of one user's supervisor."""

    path: Path
    state_dir: Path

    @property
    def own(self) -> Path:
        return self.path / socket_dir.OWN

    @property
    def handover_socket(self) -> Path:
        return self.path / HANDOVER_SOCKET

    @property
    def control_socket(self) -> Path:
        """Returns the socket that only root reaches: root's process listens there and hands connections on."""
        return self.path / socket_dir.CONTROL_SOCKET

    def make(self, identity: Identity) -> None:
        """Makes the folder. The user's own part is root's until `give`. Blocks. Raises HoldfastError."""
        try:
            _make(self.path, 0o711, 0, 0)
            _make(self.own, 0o700, 0, 0, or_uid=identity.uid)
            _make(self.state_dir, 0o700, identity.uid, identity.gid)
        except OSError as error:
            what = f"make the folders of user id {identity.uid} in {self.path}"
            raise kernel_error_remedies.refusal(what, error, otherwise="remove what is in its place") from error

    def give(self, identity: Identity) -> None:
        """Gives the user the own part: the file system that is mounted there, if one is. Raises OSError.

        Below a mount, the folder stays root's: the user has never opened it, and can put nothing there.
        """
        descriptor = os.open(self.own, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchown(descriptor, identity.uid, identity.gid)
        finally:
            os.close(descriptor)

    def listen(self) -> socket.socket:
        """Returns a new socket for hand-overs, which only root may use. Raises OSError."""
        return bind_for_root(self.handover_socket, socket.SOCK_SEQPACKET)

    def note(self, record: Record) -> None:
        """Writes the record. Raises OSError."""
        self._write(RECORD, record)

    def note_limits(self, limits: Limits) -> None:
        """Writes other limits into the record, if it can be written."""
        with suppress(OSError):
            record = records.read(self.path / RECORD, Record, bytes_max=RECORD_BYTES_MAX)
            self._write(RECORD, msgspec.structs.replace(record, limits=limits))

    def note_process(self, pid: int, started_ticks: int, variables: Mapping[str, str]) -> None:
        """Adds the process to the record; called by the supervisor while it is still root. Raises OSError."""
        self._write(PROCESS, _Process(pid, started_ticks, dict(variables)))

    def record(self) -> Record | None:
        try:
            record = records.read(self.path / RECORD, Record, bytes_max=RECORD_BYTES_MAX)
        except OSError:
            return None
        if record.pid:
            return record
        with suppress(OSError):
            process = records.read(self.path / PROCESS, _Process, bytes_max=RECORD_BYTES_MAX)
            variables = process.variables or record.variables
            return msgspec.structs.replace(
                record, pid=process.pid, started_ticks=process.started_ticks, variables=variables
            )
        return record

    def _write(self, name: str, content: msgspec.Struct) -> None:
        fresh = self.path / f"{name}.new"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(content))
        fresh.rename(self.path / name)

    def forget(self) -> None:
        """Removes the record: no restart. The user's folder stays, because root removes nothing in it."""
        for name in (RECORD, PROCESS, HANDOVER_SOCKET):
            (self.path / name).unlink(missing_ok=True)


class UserFolders:
    """The folders of all users of a node's service."""

    def __init__(self, service_dir: Path, state_dir: Path) -> None:
        self._users = service_dir / socket_dir.USERS
        self._states = state_dir / socket_dir.USERS

    def make(self) -> None:
        """Makes the folder of all. Blocks. Raises HoldfastError."""
        for path, mode in ((self._users.parent, 0o755), (self._users, 0o755), (self._states.parent, 0o711)):
            _make_for_root(path, mode)
        _make_for_root(self._states, 0o711)

    def of(self, identity: Identity) -> UserFolder:
        return UserFolder(self._users / identity.name, self._states / str(identity.uid))

    def uids(self) -> list[int]:
        """Returns the user id of each folder: those of users who have come since the node has booted. Blocks."""
        with suppress(OSError):
            return [int(uid) for uid in (name.partition(".")[0] for name in os.listdir(self._users)) if uid.isdigit()]
        return []

    def recorded(self) -> Iterator[Record]:
        """Yields the supervisors that the previous service left."""
        with suppress(OSError):
            for name in sorted(os.listdir(self._users)):
                record = UserFolder(self._users / name, self._states).record()
                if record is not None and record.identity.name == name:
                    yield record


def bind_for_root(path: Path, kind: int) -> socket.socket:
    """Returns a listening socket for root alone, at a path in a folder of root's. Raises OSError."""
    path.unlink(missing_ok=True)
    return listening(path, mode=0o600, backlog=BACKLOG, kind=kind | socket.SOCK_NONBLOCK)


def _make_for_root(path: Path, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make(path, mode, os.geteuid(), None)
    except OSError as error:
        otherwise = "it must be a directory of root, to which nobody else may write"
        raise kernel_error_remedies.refusal(f"use {path}", error, otherwise=otherwise) from error


def _make(path: Path, mode: int, uid: int, gid: int | None, *, or_uid: int | None = None) -> None:
    """Makes the folder, or checks an existing one, by descriptor, so that what was checked is changed. Raises OSError.

    Root owns the folder around it, so nobody else can replace it. `or_uid`: who may own an existing one, too.
    """
    is_new = False
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        is_new = True
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if is_new:
            os.fchown(descriptor, uid, -1 if gid is None else gid)
        elif found.st_uid not in (uid, or_uid):
            raise PermissionError(f"it belongs to user id {found.st_uid}, not {or_uid or uid}")
        if stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
