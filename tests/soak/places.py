"""Folders for logs that fail: a small disk that fills up, and a file system that stops answering. All need root."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

NEW_MOUNT_NAMESPACE = 0x20000
RECURSIVE_PRIVATE = 0x4000 | 0x40000
DETACH = 2
DISK_BYTES = 8 << 20
_c = ctypes.CDLL(None, use_errno=True)


def own_mounts() -> bool:
    """Separates our mounts from the machine's: all later mounts end with this process."""
    if os.geteuid() != 0 or _c.unshare(NEW_MOUNT_NAMESPACE):
        return False
    return _c.mount(b"none", b"/", None, RECURSIVE_PRIVATE, None) == 0


@contextlib.contextmanager
def mounts_of_our_own() -> Generator[bool]:
    """Yields False if that is not possible; else restores the machine's mounts afterwards."""
    before, folder = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), os.getcwd()
    try:
        yield own_mounts()
    finally:
        if _c.setns(before, NEW_MOUNT_NAMESPACE) == 0:
            os.chdir(folder)
        os.close(before)


def mounted_under(folder: Path) -> list[str]:
    with open("/proc/self/mounts", encoding="utf-8") as file:
        return [f"mount {line.split()[1]}" for line in file if line.split()[1].startswith(f"{folder}/")]


class SmallDisk:
    """A tmpfs of 8 MiB. A file of ours fills the space that the job's own files leave."""

    def __init__(self, folder: Path, *, mode: str = "755") -> None:
        self.folder = folder
        folder.mkdir()
        if _c.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={DISK_BYTES},mode={mode}".encode()):
            raise OSError(ctypes.get_errno(), f"cannot mount a tmpfs on {folder}")

    def fail(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def mend(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)
        # An operator who frees a disk also removes old logs; otherwise the job's own would fill it permanently.
        for file in self.folder.rglob("*.log"):
            with contextlib.suppress(OSError):
                os.truncate(file, 0)

    def close(self) -> None:
        _c.umount2(str(self.folder).encode(), DETACH)


class Unanswering:
    """Our own FUSE file system, which stops answering, and continues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        server = Path(__file__).with_name("unanswering_fs.py")
        self._process = subprocess.Popen(
            [sys.executable, str(server), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"mounted\n":
            raise OSError(errno.ENODEV, "cannot serve a file system by /dev/fuse")

    def fail(self) -> None:
        self._say(b"stop\n")

    def swallow(self) -> None:
        """From now on, a process that accesses it can't even be killed."""
        self._say(b"swallow\n")

    def mend(self) -> None:
        self._say(b"go\n")

    def _say(self, word: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word)
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate(timeout=10)


@contextlib.contextmanager
def served_alone(folder: Path) -> Generator[Unanswering | None]:
    """Yields a file system that only this process and its children see; None if none can be served."""
    with mounts_of_our_own() as can_mount:
        if not can_mount or not os.access("/dev/fuse", os.R_OK | os.W_OK):
            yield None
            return
        files = Unanswering(folder)
        try:
            yield files
        finally:
            files.close()
