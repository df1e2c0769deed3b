"""Where does a log go on if somebody removes its file or moves it away?

In a new file at the old path.
"""

from __future__ import annotations

import contextlib
import errno
import os

# After these, only a newly opened file may take more: the file server has evicted this client, or lost the file.
OPEN_AGAIN = frozenset({errno.EIO, errno.ESTALE, errno.ESHUTDOWN, errno.ENOTCONN})
FILES_MAX = 64  # whose times are remembered
LOOK_S = 1.0  # between two checks whether the file is still in its place
GONE = b"[holdfast: the file was removed or moved away; the log goes on here]\n"


def leave_if_moved(fd: int, path: str) -> bool:
    """Closes a file that is no longer at its path, since nobody would read what is written to it; returns whether."""
    if not has_moved(fd, path):
        return False
    with contextlib.suppress(OSError):  # a file server that has removed it (ESTALE)
        os.close(fd)
    return True


def has_moved(fd: int, path: str) -> bool:
    """Returns whether an open file is known to be no longer at its path."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        there = None
    except OSError:
        return False  # Unknown for now.
    with contextlib.suppress(OSError):  # a file server that has removed it (ESTALE)
        own = os.fstat(fd)
        if there is not None and (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino):
            return False
    return True


class MovedFiles:
    """Checks that the open files of one writer are still in their places, each at most once in LOOK_S."""

    def __init__(self) -> None:
        self._look_at_s: dict[str, float] = {}

    def leave(self, fd: int, path: str, *, now_s: float) -> bool:
        """Closes a file that is no longer at its path; returns whether."""
        if now_s < self._look_at_s.get(path, 0.0):
            return False
        if len(self._look_at_s) >= FILES_MAX:  # of cycles that are long over
            self._look_at_s.clear()
        self._look_at_s[path] = now_s + LOOK_S
        return leave_if_moved(fd, path)
