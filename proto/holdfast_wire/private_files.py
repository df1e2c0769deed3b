"""Is a file or a folder private to its user, why not, and how is a private folder made?

Both sides ask here: the supervisor about its folders, keys and secrets, a rank about the folder of its supervisor.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_folder(path: Path) -> None:
    """Makes the directory with mode 0700, whatever the umask. An existing one stays as it is. Raises OSError."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile, by a process that found it empty
        path.chmod(0o700)


def folder_fault(path: Path) -> str:
    """Returns why the directory can't be trusted, with a remedy if it is plain; "" if it is ours and closed."""
    try:
        found = path.lstat()
    except OSError as error:
        return error.strerror or str(error)
    if stat.S_ISLNK(found.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a directory"
    if found.st_uid != os.geteuid():
        return f"it belongs to user id {found.st_uid}, not {os.geteuid()}"
    if found.st_mode & _OTHERS:
        return f"its mode is {stat.S_IMODE(found.st_mode):04o}, so others may enter it; chmod 0700 {path}"
    return ""


def secret_fault(path: Path, found: os.stat_result) -> str:
    """Returns why the file at `path`, as `found`, can't hold a secret, with a remedy; "" if only its user reads it."""
    return f"others may read it; run chmod 600 {path}" if found.st_mode & _OTHERS else ""
