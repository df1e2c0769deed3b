"""Which watched directories have changed? The kernel answers, without polling."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

import anyio
import msgspec

IN_MODIFY = 0x2
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000  # the watch is gone, with its directory or because we removed it
IN_ONLYDIR = 0x1000000
IN_ISDIR = 0x40000000
WRITTEN = IN_MODIFY | IN_CREATE | IN_MOVED_TO
RENAMED_OR_DELETED = IN_CREATE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF
EVENT_HEAD = struct.Struct("iIII")
READ_BYTES = 64 * 1024

_REMEDIES = {
    errno.EMFILE: "; raise fs.inotify.max_user_instances",
    errno.ENOSPC: "; raise fs.inotify.max_user_watches",
}

_libc = ctypes.CDLL(None, use_errno=True)


class Changes(msgspec.Struct, frozen=True):
    """The changes in the watched directories."""

    directories: frozenset[Path] = frozenset()  # directories in which something has changed
    subdirectories: frozenset[Path] = frozenset()  # subdirectories that have changed; with WRITTEN, the new ones


class DirectoryWatch:
    """A set of watched directories. `fileno` is readable when `take` has changes to return."""

    def __init__(self, *paths: Path, changes: int = WRITTEN) -> None:
        """Raises OSError as `add` does, and if the user has no inotify instances left."""
        self._mask = changes | IN_ONLYDIR
        self._descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise _last_error("inotify")
        self._paths: dict[int, Path] = {}
        self._numbers: dict[Path, int] = {}
        try:
            for path in paths:
                self.add(path)
        except OSError:
            self.close()
            raise

    def __contains__(self, path: Path) -> bool:
        return path in self._numbers

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def add(self, path: Path) -> bool:
        """Watches a directory; returns whether it was not watched under this name yet.

        Idempotent. Raises OSError if it is gone or the user has no watches left.
        """
        number = _libc.inotify_add_watch(self._descriptor, os.fsencode(path), self._mask)
        if number < 0:
            raise _last_error(str(path))
        if self._numbers.get(path) == number:
            return False
        self._forget(number)  # it is the same directory under another name
        self._forget(self._numbers.get(path))  # it is another directory under the same name
        self._paths[number] = path
        self._numbers[path] = number
        return True

    def remove(self, path: Path) -> None:
        """Stops watching. Idempotent."""
        number = self._numbers.get(path)
        if number is not None:
            self._forget(number)
            _libc.inotify_rm_watch(self._descriptor, number)  # this fails if the kernel was faster

    async def changed(self) -> None:
        """Returns after the next change; several count as one."""
        await anyio.wait_readable(self._descriptor)
        self.take()

    def take(self) -> Changes | None:
        """Returns the changes since the last call; None if there were too many: check all directories."""
        directories: set[Path] = set()
        subdirectories: set[Path] = set()
        overflowed = False
        while True:
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                return None if overflowed else Changes(frozenset(directories), frozenset(subdirectories))
            offset = 0
            while offset < len(data):
                number, mask, _, name_bytes = EVENT_HEAD.unpack_from(data, offset)
                offset += EVENT_HEAD.size + name_bytes
                overflowed = overflowed or bool(mask & IN_Q_OVERFLOW)
                path = self._paths.get(number)
                if path is None:
                    continue
                directories.add(path)
                if mask & IN_ISDIR and name_bytes:
                    name = data[offset - name_bytes : offset].rstrip(b"\0")
                    subdirectories.add(path / os.fsdecode(name))
                if mask & IN_IGNORED:
                    self._forget(number)

    def _forget(self, number: int | None) -> None:
        path = self._paths.pop(number, None) if number is not None else None
        if path is not None and self._numbers.get(path) == number:
            del self._numbers[path]


def _last_error(place: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number) + _REMEDIES.get(number, ""), place)
