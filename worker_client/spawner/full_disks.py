"""Which full file system, or which quota, made a rank fail?

A rank that can't write says so ("No space left on device", "Disk quota exceeded"), but rarely where. Only after such an
end is a file system asked, because one that hangs would stop the spawner.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator, Sequence

from . import working_folder
from .reaping import Ending

FREE_BYTES_MAX = 64 * 1024  # of a file system that is as good as full: what is left may be too little for one block
NO_FILE = "no file"  # is free
ARGUMENTS_MAX = 64
# What the system says, and what torch.save makes of it.
_SIGNS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "file write failed")


def says_so(text: str) -> bool:
    """Returns whether a failed write is in what a rank has said."""
    return any(sign in text for sign in _SIGNS)


def may_end(ending: Ending) -> bool:
    """Returns whether a full disk may end a process so. By a signal it is SIGBUS alone, for memory in a full file.

    Ranks that were killed are not asked about: what they waited for may be a file system that hangs.
    """
    return ending.signal in (None, signal.SIGBUS)


def named(logs: Sequence[str], command: Sequence[str]) -> str:
    """Returns which of the file systems that a rank writes to are full, or on which a quota is reached; "" if none is.

    `logs`: files that its output goes to. `command`: its script and arguments, of which paths are looked at.
    """
    found: dict[int, str] = {}
    for what, path in _places(logs, command):
        try:
            device, free = os.stat(path).st_dev, _free(path)
            if free and device not in found:
                top = _top(path, device)
                disk = f"the file system {top}, which holds {what}, is"
                what_ends = f"a quota on {disk} reached" if _is_of_quota(path, top, free) else f"{disk} full"
                found[device] = f"{what_ends} ({free} free)"
        except OSError:
            continue
    return "; ".join(found.values())


def _places(logs: Sequence[str], command: Sequence[str]) -> Iterator[tuple[str, str]]:
    folder = working_folder.current()
    for log in logs:
        yield "its log", os.path.join(folder, log)
    for argument in command[:ARGUMENTS_MAX]:
        path = argument.rpartition("=")[2]
        if "/" in path or os.path.exists(path):
            yield "what its command names", _existing(os.path.join(folder, path))
    yield "its working folder", folder
    yield "its temporary files", os.environ.get("TMPDIR") or "/tmp"
    yield "shared memory", "/dev/shm"


def _existing(path: str) -> str:
    """Returns the path, or the nearest folder above it that exists."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _top(path: str, device: int) -> str:
    """Returns where the file system is mounted. Raises OSError."""
    while (above := os.path.dirname(path)) != path and os.stat(above).st_dev == device:
        path = above
    return path


def _is_of_quota(path: str, top: str, free: str) -> bool:
    """Returns whether a folder with a quota of its own has no more free, and not the file system. Raises OSError.

    The system counts such a folder as a smaller file system. The free space alone shows no quota: it also differs if
    the rank has removed its file meanwhile.
    """
    here, whole = os.statvfs(path), os.statvfs(top)
    is_smaller = here.f_files < whole.f_files if free == NO_FILE else here.f_blocks < whole.f_blocks
    return is_smaller and not _free(top)


def _free(path: str) -> str:
    """Returns how little is free there, in words; "" if that is enough, or if nobody can ever write there."""
    found = os.statvfs(path)
    if found.f_flag & os.ST_RDONLY:
        return ""
    blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    free_bytes = blocks * found.f_frsize
    if found.f_blocks and free_bytes < FREE_BYTES_MAX:
        return f"{free_bytes} bytes"
    return NO_FILE if found.f_files and not found.f_favail else ""
