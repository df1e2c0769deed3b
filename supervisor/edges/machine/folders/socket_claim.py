"""Which supervisor serves this socket directory? The one that holds the exclusive lock; deleted sockets come back."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from supervisor.edges.machine import records
from supervisor.edges.machine.folders import socket_dir
from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.edges.machine.own_process.unix_listener import listening
from supervisor.errors import ConfigurationError, InUseError

LOCK_FILE = "supervisor.lock"
HOLDER_BYTES_MAX = 32
BACKLOG = 1024
ATTEMPTS_MAX = 20  # for a directory that its last holder removes while we make or open it
_FILE_SYSTEM = "check its file system"


class SocketDirClaim:
    """An exclusive lock on a socket directory, held until `close`. The kernel releases it when we die."""

    def __init__(self, path: Path) -> None:
        """Makes or checks the directory. Raises InUseError if another supervisor serves it, or as `socket_dir.make`."""
        self.path = path
        self._lock = -1
        self.renew()

    def renew(self) -> None:
        """Takes the lock again if the directory or the lock file was deleted. Raises as the constructor does."""
        fresh = self._taken(ATTEMPTS_MAX)
        if fresh != self._lock:
            self.close()
            self._lock = fresh

    def _taken(self, attempts: int) -> int:
        try:
            socket_dir.make(self.path)
            return self._lock if self.is_held else _lock(self.path)
        except ConfigurationError:
            if attempts == 1:
                raise
        return self._taken(attempts - 1)

    @property
    def is_held(self) -> bool:
        """Returns False if directory or lock file was deleted: another supervisor may have made its own there."""
        return self._lock >= 0 and _is_same_file(self._lock, self.path / LOCK_FILE)

    def close(self) -> None:
        if self._lock >= 0:
            _release(self._lock)
            self._lock = -1


@contextmanager
def held(path: Path) -> Generator[None]:
    """Holds the lock of a directory that is made and checked elsewhere. Raises as a claim does."""
    descriptor = _lock(path)
    try:
        yield
    finally:
        _release(descriptor)


@contextmanager
def held_if_dead(path: Path) -> Generator[bool]:
    """Yields whether the supervisor of this directory is dead; then nobody else can claim it within the block.

    Creates nothing, and raises nothing of its own.
    """
    try:
        descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _is_left(descriptor, path / LOCK_FILE)
    finally:
        _release(descriptor)


def _is_left(descriptor: int, path: Path) -> bool:
    """Returns whether nobody held the lock; then this descriptor holds it."""
    try:
        # A supervisor writes its pid once it holds the lock: the owner of an empty file is about to take it.
        if os.fstat(descriptor).st_size == 0:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return _is_same_file(descriptor, path)  # Else it was removed, and a new file of that name is another's.


def holder_pid(path: Path) -> int | None:
    """Returns the pid that the last holder of the directory's lock wrote; it may be dead."""
    try:
        return int(records.content(path / LOCK_FILE, bytes_max=HOLDER_BYTES_MAX))
    except (OSError, ValueError):
        return None


def bind(path: Path) -> socket.socket:
    """Returns a listening 0600 socket at `path`, and replaces a dead supervisor's. The caller holds the claim.

    Raises ConfigurationError if something other than our socket is in the way, or as `kernel_error_remedies.refusal`.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            raise ConfigurationError(f"cannot serve {path}: what is there is not a socket of ours; remove it")
        path.unlink(missing_ok=True)
    try:
        return listening(path, mode=0o600, backlog=BACKLOG)
    except OSError as error:
        raise kernel_error_remedies.refusal(f"serve {path}", error, otherwise="check its directory") from error


def bind_in_own_dir(path: Path) -> socket.socket:
    """Binds a socket in a closed directory of its own, which it makes, and links to it from beside that directory.

    The link is for scripts that look for the socket there; nothing else depends on it.
    """
    socket_dir.make_closed(path.parent)
    listener = bind(path)
    link_beside(path)
    return listener


def link_beside(path: Path) -> None:
    """Makes the link to the socket. Costs one readlink if it exists. Never raises."""
    link, target = path.parent.with_name(path.name), f"{path.parent.name}/{path.name}"
    with suppress(OSError):
        try:
            if os.readlink(link) == target:
                return
        except FileNotFoundError:
            pass
        except OSError:
            # It is a socket of an earlier version, which nobody serves while we hold the claim, or not ours.
            if not stat.S_ISSOCK(link.lstat().st_mode):
                return
        fresh = link.with_name(f".{path.name}.new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(link)


def identity(path: Path) -> tuple[int, int] | None:
    """Returns what tells this socket file from a later one of the same name; None if it is gone."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _lock(path: Path) -> int:
    target = path / LOCK_FILE
    while True:
        try:
            descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise kernel_error_remedies.refusal(f"open {target}", error, otherwise="remove it") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise kernel_error_remedies.refusal(f"lock {target}", error, otherwise=_FILE_SYSTEM) from error
            raise InUseError(
                f"cannot serve {path}: the supervisor with pid {holder_pid(path) or 'unknown'} serves it; "
                "stop that one, or choose another directory with --socket-dir"
            ) from None
        if _is_same_file(descriptor, target):
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            except OSError as error:
                os.close(descriptor)
                raise kernel_error_remedies.refusal(f"write {target}", error, otherwise=_FILE_SYSTEM) from error
            return descriptor
        os.close(descriptor)  # Deleted between open and lock: nobody else would look at the lock that we hold.


def _release(descriptor: int) -> None:
    """Unlocks and closes the file: a process that has not executed yet may have a copy, which holds the lock, too."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    mine = os.fstat(descriptor)
    return identity(path) == (mine.st_dev, mine.st_ino)
