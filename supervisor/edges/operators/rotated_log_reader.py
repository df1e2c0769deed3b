"""What has one rank printed to one of its streams, across the rotation of its file?

The spawner writes `<name>` and keeps one older part, `<name>.1`. The folder may belong to a job's user, so links in it
are not followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

CHUNK_BYTES = 64 * 1024


class RotatedLogReader:
    """Reads one stream of one rank forwards. Calls block on the disk.

    `file` is the inode of the file that is read, `read_bytes` its offset behind all that `read` yielded.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self.file = 0
        self.read_bytes = 0
        self._descriptor: int | None = None
        self._began = False
        self._before: tuple[int, int] | None = None  # the file that was read, or passed over, before this one

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def skip_to_tail(self, lines: int) -> None:
        """Starts at the last `lines` lines, in the rotated file if they begin there."""
        self._began = True
        missing, is_end = lines, True
        if self._open():
            self.read_bytes, missing = _start_of_tail(self._descriptor or 0, missing, is_end=is_end)
            is_end = not os.fstat(self._descriptor or 0).st_size
        rotated = self._older_part()
        if rotated is None:
            return
        self._before = _identity(rotated)
        if not missing or (self._descriptor is not None and self._before == _identity(self._descriptor)):
            os.close(rotated)  # Not wanted, or rotated just now.
            return
        self.close()
        self._descriptor = rotated
        self.read_bytes, _ = _start_of_tail(rotated, missing, is_end=is_end)

    def read(self) -> Iterator[bytes]:
        """Yields everything that was not read yet."""
        if not self._began:
            self._began = True
            self._descriptor = self._older_part()
        while self._descriptor is not None or self._open():
            yield from self._read_descriptor()
            if not self._was_rotated():
                return
            yield from self._read_descriptor()  # written between our last read and the rotation
            self._open_next()

    def _open_next(self) -> None:
        """Opens the file after this one: the older part if the rank has filled that, too, since we looked.

        The older part is one that was read if only the current file was removed.
        """
        read = self._descriptor
        now = _identity(read) if read is not None else None
        self._open()
        older = self._older_part()
        before = _identity(older) if older is not None else now
        if before not in (self._before, now):
            older, self._descriptor, before = self._descriptor, older, now
        self._before = before
        for descriptor in (older, read):
            if descriptor is not None:
                os.close(descriptor)

    def _older_part(self) -> int | None:
        return _open_beneath(self._folder, f"{self._name}.1")

    def _read_descriptor(self) -> Iterator[bytes]:
        if self._descriptor is None:
            return
        found = os.fstat(self._descriptor)
        if found.st_size < self.read_bytes:
            self.read_bytes = 0  # truncated in place
        while data := os.pread(self._descriptor, CHUNK_BYTES, self.read_bytes):
            self.file = found.st_ino
            self.read_bytes += len(data)
            yield data

    def _open(self) -> bool:
        self._descriptor = _open_beneath(self._folder, self._name)
        self.read_bytes = 0
        return self._descriptor is not None

    def _was_rotated(self) -> bool:
        if self._descriptor is None:
            return False
        try:
            now = os.stat(self._folder / self._name, follow_symlinks=False)
        except OSError:
            return False
        return (now.st_dev, now.st_ino) != _identity(self._descriptor)


def _open_beneath(directory: Path, name: str) -> int | None:
    """Opens a regular file of a real directory; returns None if there is none."""
    with contextlib.suppress(OSError):
        parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=parent)
        finally:
            os.close(parent)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    return None


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _start_of_tail(descriptor: int, newlines: int, *, is_end: bool) -> tuple[int, int]:
    """Returns the offset behind the last `newlines`, and how many are missing. `is_end`: a final one does not count."""
    end = os.fstat(descriptor).st_size
    position = end
    while position > 0:
        size = min(CHUNK_BYTES, position)
        position -= size
        data = os.pread(descriptor, size, position)
        if is_end and position + size == end and data.endswith(b"\n"):
            data = data[:-1]
        while (found := data.rfind(b"\n")) >= 0:
            newlines -= 1
            if newlines == 0:
                return position + found + 1, 0
            data = data[:found]
    return 0, newlines
