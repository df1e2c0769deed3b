"""Where are the root's writes noted for its successor? In one hidden file beside the logs.

It has one line of JSON for each append, written before the append. Its lock is the right to write the job's files: a
root that was replaced, but does not know it yet, keeps its successor waiting.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from supervisor.core.log_funnel.written_positions import Entry, Positions, Torn

SHORTENED_AT_BYTES = 8 * 1024 * 1024
READ_BYTES_MAX = 64 * 1024 * 1024

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Entry).decode


def place_beside(logs: str, job_id: str) -> Path:
    """Returns the path. `logs`: the prefix of the cycles' files, or the file of the supervisors' words."""
    folder, name = os.path.split(logs)
    safe = "".join(each if each.isalnum() or each in "._-" else "_" for each in job_id)[:100]
    return Path(folder, f".{name[:80]}.{safe}.positions")


class PositionFile:
    """The notes of a root. All methods block on the disk and may raise OSError. `path_of` takes a file's number."""

    def __init__(self, path: Path, path_of: Callable[[int], str]) -> None:
        self._path = path
        self._path_of = path_of
        self._fd = -1
        self._size = 0

    def open(self) -> Positions | None:
        """Returns the positions of previous writers; None if one of them still has the right to write."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_current = os.path.samestat(os.stat(self._path), os.fstat(fd))
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EBADMSG, "it is not a regular file; remove it", str(self._path))
        except (BlockingIOError, FileNotFoundError):
            is_current = False
        except BaseException:  # whatever it is, raise it again
            os.close(fd)
            raise
        if not is_current:
            os.close(fd)
            return None
        self._fd = fd
        try:
            positions = self._read()
            positions.thin_out()
            self.shorten(positions.entries())
        except BaseException:  # Whatever it is, the next try must find the lock free.
            os.close(self._fd)
            self._fd = -1
            raise
        return positions

    def note(self, entry: Entry) -> None:
        """Notes an entry, completely or not at all."""
        data = _encode(entry) + b"\n"
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += done

    @property
    def is_long(self) -> bool:
        return self._size > SHORTENED_AT_BYTES

    def shorten(self, known: list[Entry]) -> None:
        """Replaces the file, with its lock, by one with only the known entries. Not during an append."""
        beside = self._path.with_name(f"{self._path.name}.new")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(beside, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = b"".join(_encode(each) + b"\n" for each in known)
            done = 0
            while done < len(data):
                done += os.write(fd, data[done:])
            os.rename(beside, self._path)
        except BaseException:  # whatever it is, keep the old file and raise it again
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd, self._size = fd, len(data)

    def remove(self) -> None:
        """Removes the file: the job's logs are complete."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> Positions:
        positions, last = Positions(), dict[int, Entry]()
        for entry in _entries(self._fd):
            positions.restore(entry)
            if entry.at >= 0:
                last[entry.file] = entry
            else:
                last.pop(entry.file, None)
        for entry in last.values():
            self._correct(positions, entry)
        return positions

    def _correct(self, positions: Positions, entry: Entry) -> None:
        """Corrects the positions by comparing the last noted append with the file."""
        path = self._path_of(entry.file)
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            size = 0
        torn = positions.take_back(entry, size - entry.at)
        if torn is not None:
            positions.keep_torn(torn, _keep_whole_lines(path, torn))


def _entries(fd: int) -> Iterable[Entry]:
    """Yields the complete entries; the last line may be incomplete."""
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb", closefd=False) as file:
        for line in file.read(READ_BYTES_MAX).splitlines(keepends=True):
            if line.endswith(b"\n"):
                try:
                    yield _decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    return


def _keep_whole_lines(path: str, torn: Torn) -> int:
    """Cuts off an incomplete append; returns how much of it stays."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        length = os.pread(fd, torn.length, torn.at).rfind(b"\n") + 1
        os.ftruncate(fd, torn.at + length)
    finally:
        os.close(fd)
    return length
