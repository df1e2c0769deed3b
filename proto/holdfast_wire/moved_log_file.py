"""What happens when a log file is removed or moved away? The log goes on in a new file at the old path."""

from __future__ import annotations

import contextlib
import errno
import os

# After these, only a newly opened file may take more: the file server has evicted this client, or lost the file.
OPEN_AGAIN = frozenset({errno.EIO, errno.ESTALE, errno.ESHUTDOWN, errno.ENOTCONN})
LOOK_S = 1.0  # between two checks whether the file is still in its place
GONE = b"[holdfast: the file was removed or moved away; the log goes on here]\n"


def leave_if_moved(fd: int, path: str) -> bool:
    """Closes a file that is no longer at its path, since nobody would read what is written to it; returns whether."""
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
    with contextlib.suppress(OSError):
        os.close(fd)
    return True
