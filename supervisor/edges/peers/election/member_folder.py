"""Which folder has this node's part of the job's own etcd, what does the next supervisor find there, what removes it?

A process that uses the folder holds its lock. A run that was killed leaves the folder; the next job of this node that
brings an etcd removes it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from holdfast_wire import private_files

from supervisor.core.etcd_membership import Published
from supervisor.edges.machine.own_process.side_threads import SideThreads
from supervisor.ports.timed_waits import pause

FOLDER = "etcd"  # in the state folder; in it, one folder for each job and node
UNUSED_S = 3600.0  # no supervisor comes back after that
LOCK = "lock"
WRITE_TIMEOUT_S, REMOVAL_TIMEOUT_S = 1.0, 10.0

_log = logging.getLogger("holdfast.cluster")

Record = TypeVar("Record", "Membership", Published)


class Membership(msgspec.Struct, frozen=True):
    """Which member this node has."""

    id: int
    seat: int
    lease: int
    at_endpoint: bool


class MemberFolder:
    """The folder of one job and node. Several nodes may have one home, so their names are in the path."""

    def __init__(self, state_dir: Path, job_id: str, node: str, *, goes_on: bool) -> None:
        """Makes it, and locks it. Not `goes_on`: without what a killed run has left. Blocks on the disk. Raises
        OSError.

        `known` and `kept` are who the members were as the supervisor before this one ended, and which of them was its
        own. None: it knew none, its member's data is gone, or this one does not go on.
        """
        self._writes = SideThreads(stuck_max=1)
        top = state_dir / FOLDER
        self.path = top / job_id.replace("/", "_") / node.replace("/", "_")
        for each in (top, self.path.parent, self.path):
            private_files.make_folder(each)
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locked(self._lock):
            self.close()
            raise OSError(errno.EBUSY, "another run of this job on this node uses it")
        os.utime(self._lock)
        self.known: Published | None = None
        self.kept: Membership | None = None
        if goes_on:
            self.known = self._read("members", Published)
            self.kept = self._read("member", Membership) if (self.path / "data").is_dir() else None
        else:
            for each in self.path.iterdir():
                if each.name != LOCK:
                    _remove(each)
        _remove_unused(top, now_s=os.fstat(self._lock).st_mtime)

    def close(self) -> None:
        """Lets other processes use it."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    async def stay_in_use(self) -> None:
        """Shows that the folder is in use, until cancelled: some file systems keep a lock on its node alone."""
        while True:
            await pause(UNUSED_S / 10, why="the file's time says how long ago it was used")
            with suppress(OSError):
                await self._writes.call(lambda: os.utime(self._lock), timeout_s=WRITE_TIMEOUT_S, discard=bool)

    async def keep(self, membership: Membership) -> None:
        await self._write("member", membership)

    async def keep_known(self, members: Published) -> None:
        await self._write("members", members)

    async def remove_data(self) -> None:
        """Removes the data of the member, however long that takes: another member would use it.

        The member's process must have ended.
        """
        for name in ("member", "data"):
            await self._removed(partial(_remove, self.path / name), float("inf"))

    async def remove(self) -> None:
        """Removes all, certificates, too. If the disk does not answer in time, the next run does it."""

        def removed() -> None:
            _remove(self.path)
            with suppress(OSError):
                self.path.parent.rmdir()  # unless another node has its folder there
            self.close()

        await self._removed(removed, REMOVAL_TIMEOUT_S)

    async def _removed(self, work: Callable[[], None], timeout_s: float) -> None:
        try:
            await SideThreads(stuck_max=1).call(work, timeout_s=timeout_s, discard=bool)
        except OSError as error:
            _log.warning("cannot remove what the job's own etcd has left in %s: %s", self.path, error)

    def _read(self, name: str, kind: type[Record]) -> Record | None:
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    async def _write(self, name: str, record: Membership | Published) -> None:
        beside = self.path / f"{name}.new"

        def write() -> None:
            beside.write_bytes(msgspec.json.encode(record))
            beside.replace(self.path / name)

        with suppress(OSError):  # then the next supervisor of this node begins without it, or with an older one
            await self._writes.call(write, timeout_s=WRITE_TIMEOUT_S, discard=bool)


def _remove_unused(top: Path, *, now_s: float) -> None:
    for folder in top.glob("*/*"):
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if now_s - os.fstat(lock).st_mtime > UNUSED_S and _locked(lock, or_unknown=False):
                _remove(folder)
                folder.parent.rmdir()
        except OSError:
            continue  # another process removes it, or a node's folder is left
        finally:
            os.close(lock)


def _locked(descriptor: int, *, or_unknown: bool = True) -> bool:
    """Takes the lock. Returns False if another process has it; `or_unknown` where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return or_unknown
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
