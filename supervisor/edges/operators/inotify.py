"""Which watched directories have changed? The kernel's answer, without polling."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

IN_MODIFY = 0x2
IN_CLOSE_WRITE = 0x8
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_Q_OVERFLOW = 0x4000
IN_ONLYDIR = 0x1000000
EVENT_HEAD = struct.Struct("iIII")
READ_BYTES = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryWatch:
    """A set of watched directories. `fileno` is readable when `take` has something to say."""

    def __init__(self) -> None:
        self._descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise _last_error("inotify")
        self._paths: dict[int, Path] = {}

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def add(self, path: Path) -> None:
        """Idempotent. Raises OSError: the directory is gone, or the user has no watches left."""
        mask = IN_MODIFY | IN_CLOSE_WRITE | IN_CREATE | IN_MOVED_TO | IN_ONLYDIR
        number = _libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask)
        if number < 0:
            raise _last_error(str(path))
        self._paths[number] = path

    def take(self) -> set[Path] | None:
        """Directories in which something has changed since the last call; None: too much, look at all of them."""
        changed: set[Path] = set()
        overflowed = False
        while True:
            try:
                data = os.read(self._descriptor, READ_BYTES)
            except BlockingIOError:
                return None if overflowed else changed
            offset = 0
            while offset < len(data):
                number, mask, _, name_bytes = EVENT_HEAD.unpack_from(data, offset)
                offset += EVENT_HEAD.size + name_bytes
                overflowed = overflowed or bool(mask & IN_Q_OVERFLOW)
                if number in self._paths:
                    changed.add(self._paths[number])


def _last_error(place: str) -> OSError:
    number = ctypes.get_errno()
    hint = "; raise fs.inotify.max_user_instances" if number in (errno.EMFILE, errno.ENOSPC) else ""
    return OSError(number, os.strerror(number) + hint, place)
