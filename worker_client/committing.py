"""How does a rank replace a file or folder of the job, so that it appears whole, and no later one is lost?"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Generator
from pathlib import Path

from worker_client import commit_record, fencing_tokens, lease_check
from worker_client.endpoint import from_environment
from worker_client.errors import LeaseLostError
from worker_client.workload_monitoring import Monitoring, acquire, rank_variable

RENAME_EXCHANGE = 2
AT_FDCWD = -100
NAME_BYTES_MAX = 212  # of the 255 that file systems take: temporary names are longer


@contextlib.contextmanager
def commit(path: str | os.PathLike[str]) -> Generator[Path]:
    """Yields a temporary path for a file or folder; at the end of the block, renames what is there to `path`.

    What was written is on the disk by then. If the block raises, `path` stays as it was. Raises LeaseLostError, and
    keeps what is at `path`, if another group of ranks may have taken the place of this rank's: if this rank's lease has
    ended, a later group commits to `path`, or the Wrapper has begun another iteration. In a process that no supervisor
    has started, there is nothing to compare, and the rename always happens.

    Blocks for the writes to the disk; for up to 5 s if the lease has ended, in case it is extended; and for up to 2 s
    if this rank has no connection to its supervisor yet. One rank commits; others may write into its temporary folder.
    Raises ValueError for a path that holds the working folder, and OSError for what the file system refuses.
    """
    place = _place_of(path)
    token, iteration = fencing_tokens.fencing_token(), fencing_tokens.iteration()
    with _monitoring(token) as monitoring:
        if monitoring is not None:
            _check_lease(monitoring, place)
            commit_record.claim(place, token)
        temporary = commit_record.temporary_path(place, token)
        try:
            try:
                yield temporary
            except FileNotFoundError:
                if monitoring is not None:
                    commit_record.check(place, token)  # a later group has removed the temporary folder
                raise
            _check_iteration(iteration, place)
            if not os.path.lexists(temporary):
                _explain_missing(place, temporary, token)
            _sync_all(temporary)
            _check_iteration(iteration, place)
            if monitoring is not None:
                commit_record.check(place, token)
                _check_lease(monitoring, place)
            try:
                _replace(temporary, place, token)
            except FileNotFoundError:
                _explain_missing(place, temporary, token)
        finally:
            commit_record.remove(temporary)
        _sync(place.parent)
        if monitoring is not None:
            _check_lease(monitoring, place)


def _place_of(path: str | os.PathLike[str]) -> Path:
    """Returns the absolute path: the script may change its working folder in the block. Raises ValueError, OSError."""
    place = Path(os.path.abspath(path))
    if _working_folder().is_relative_to(place):
        raise ValueError(
            f"cannot commit {os.fspath(path)!r}: it is the working folder, or holds it, and would be "
            "replaced as a whole; give the path of the file or folder to write"
        )
    if len(os.fsencode(place.name)) > NAME_BYTES_MAX:
        raise OSError(
            errno.ENAMETOOLONG, f"cannot commit {place}: its name is longer than {NAME_BYTES_MAX} bytes; shorten it"
        )
    if not place.parent.exists():
        raise FileNotFoundError(
            errno.ENOENT, f"cannot commit {place}: there is no folder {place.parent}; make it first"
        )
    if place.exists() and not (place.is_file() or place.is_dir() or place.is_symlink()):
        raise OSError(
            errno.EINVAL,
            f"cannot commit {place}: a device, a pipe or a socket is there, and would be replaced; give the path of a "
            "file or folder",
        )
    return place


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return Path("/")


@contextlib.contextmanager
def _monitoring(token: int) -> Generator[Monitoring | None]:
    """Yields the connection that tells the lease; None: no supervisor fences this process."""
    if not token:
        yield None
        return
    rank, local_rank = (int(text or 0) for text in (rank_variable(), os.environ.get("LOCAL_RANK")))
    monitoring = acquire(from_environment(os.environ), rank=rank, local_rank=local_rank, begin=False)
    try:
        yield monitoring
    finally:
        monitoring.release()


def _check_lease(monitoring: Monitoring, path: Path) -> None:
    if not lease_check.holds(monitoring):
        raise LeaseLostError(
            f"cannot commit {path}: this rank's lease has ended, since its node has had no contact with the job's "
            "leader, and another may have taken its place; end this process"
        )


def _check_iteration(iteration: tuple[int, int], path: Path) -> None:
    if fencing_tokens.iteration() != iteration:
        raise LeaseLostError(f"cannot commit {path}: the Wrapper has begun another iteration; write it again there")


def _explain_missing(path: Path, temporary: Path, token: int) -> None:
    """Raises LeaseLostError if a later group has removed the temporary path, FileNotFoundError otherwise."""
    if token:
        commit_record.check(path, token)
    raise FileNotFoundError(
        errno.ENOENT, f"cannot commit {path}: there is nothing at the temporary path; write to it", str(temporary)
    )


def _replace(temporary: Path, path: Path, token: int) -> None:
    """Renames. What it replaces is left at `temporary`, or nothing is."""
    try:
        temporary.rename(path)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.EISDIR):
            there, written = ("folder", "file") if error.errno == errno.EISDIR else ("file", "folder")
            why = f"a {there} is there, and a {written} was written; remove it first, or choose another path"
            raise type(error)(error.errno, f"cannot commit {path}: {why}") from error
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchange(temporary, path):
            aside = commit_record.temporary_path(path, token, "before")
            try:
                path.rename(aside)
                temporary.rename(path)
            except BaseException:  # A signal's handler, or the Wrapper, may also raise between the two.
                if os.path.lexists(aside) and not os.path.lexists(path):
                    aside.rename(path)
                raise
            commit_record.remove(aside)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders at once. Returns False if the file system can't; raises OSError if it fails otherwise."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(one))


def _sync_all(path: Path) -> None:
    """Has the kernel write a file, or a folder and everything in it, to the disk."""
    if path.is_dir() and not path.is_symlink():
        for folder, _, files in os.walk(path, topdown=False):
            for name in files:
                if (each := Path(folder, name)).is_file() and not each.is_symlink():
                    _sync(each)
            _sync(Path(folder))
    elif path.is_file() and not path.is_symlink():
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
