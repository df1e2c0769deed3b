"""Is this directory our own, closed to others, and writable?"""

from __future__ import annotations

import os
import stat
from pathlib import Path

PROBE = ".probe-"  # how the name of one begins
PROBE_BYTES = 4096  # one block: a full disk has none left


def make(path: Path) -> None:
    """Makes the directory with mode 0700, whatever the umask. An existing one stays as it is. Raises OSError."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    path.chmod(0o700)


def fault_of(path: Path) -> str:
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
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        return f"its mode is {mode:04o}, so others may enter it; chmod 0700 {path}"
    return ""


def write_probe(path: Path) -> None:
    """Raises OSError if no small file can be written: the disk is full or read-only, or rights are missing."""
    probe = path / f"{PROBE}{os.getpid()}-{os.urandom(4).hex()}"
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"\0" * PROBE_BYTES)
    finally:
        os.close(descriptor)
        probe.unlink(missing_ok=True)


def remove_probes(path: Path) -> None:
    """Removes the probes that processes left when they were killed. Raises OSError."""
    for probe in path.glob(f"{PROBE}*"):
        probe.unlink(missing_ok=True)
