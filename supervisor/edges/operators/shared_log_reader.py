"""What has one rank printed to the file that it shares with all ranks of its cycle (--ft-per-cycle-applog-prefix)?

A link beside the rank's other files leads to it. The file may be anywhere, so it is read only if the user who made the
link owns it: through us, nobody may read what that user could not. Earlier and later runs of the job may have written
to the same file; holdfast_wire/run_mark.py says where each begins.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Generator, Iterator
from pathlib import Path

from holdfast_wire.run_mark import MARK_BYTES, marks_in, run_begun_by, run_time

LINK_NAME = "cycle.log"  # in the rank's folder; the spawner makes it
RUN_LINK_NAME = "cycle.run"  # beside it: "leads" to when the run began, in ms of Unix time
CHUNK_BYTES = 256 * 1024
CLOCKS_DIFFER_MS = 60_000  # by no more, mostly, between this node and a file server
PIECE_LINES = 1000


class SharedLogReader:
    """Reads the lines of one rank in one run, without the prefix, forwards. Calls block on the disk.

    `file` is the inode of the file, `read_bytes` how much of the rank's output in it was read: all that `read` yielded.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._link = folder / LINK_NAME
        self._run_link = folder / RUN_LINK_NAME
        self._prefix = b"%d: " % rank
        self.file = 0
        self.read_bytes = 0
        self._offset = 0
        self._rest = b""  # the beginning of an incomplete line
        self._is_over = False  # a later run has begun
        self._earlier_bytes = -1  # of a file that only earlier runs had written at the first look; -1: none
        self._tail_lines = 0

    def skip_to_tail(self, lines: int) -> None:
        """Limits the first `read` to the last `lines` lines of the existing output."""
        self._tail_lines = lines

    def read(self) -> Iterator[bytes]:
        """Yields all complete lines that were not read yet, and b"" while it reads on in what others have printed."""
        if self._tail_lines:
            last = deque[bytes](maxlen=self._tail_lines)
            self._tail_lines = 0
            for line in self._lines():
                if line:
                    last.append(line)
                else:
                    yield line
            if last:
                yield b"".join(last)
            return
        piece: list[bytes] = []
        for line in self._lines():
            if not line:
                yield line
                continue
            piece.append(line)
            if len(piece) == PIECE_LINES:
                yield b"".join(piece)
                piece.clear()
        if piece:
            yield b"".join(piece)

    def close(self) -> None:
        """Does nothing: no file stays open."""

    def _lines(self) -> Iterator[bytes]:
        """Yields the rank's lines, and b"" before each further chunk."""
        try:
            descriptor = _open(self._link)
        except OSError:
            return  # why_unread tells people
        try:
            began_ms, run = self._own_run()
            found = os.fstat(descriptor)
            if self._is_of_earlier_runs(found, began_ms):
                return
            if found.st_ino != self.file or found.st_size < self._offset:  # replaced by another file, or truncated
                self.file = found.st_ino
                self.read_bytes, self._rest, self._is_over = 0, b"", False
                self._offset = (yield from _beginning_of(run, descriptor)) if run else 0
            while not self._is_over and (data := os.pread(descriptor, CHUNK_BYTES, self._offset)):
                self._offset += len(data)
                *whole, self._rest = (self._rest + data).split(b"\n")
                for line in whole:
                    own = line.lstrip(b" ")
                    if own.startswith(self._prefix):
                        self.read_bytes += len(own) - len(self._prefix) + 1
                        yield own[len(self._prefix) :] + b"\n"
                    elif run and run_begun_by(line) > run:
                        self._is_over = True
                        return
                if len(data) == CHUNK_BYTES:
                    yield b""
        finally:
            os.close(descriptor)

    def _own_run(self) -> tuple[int, str]:
        """Returns when this run began, in Unix time, and as its mark says it; 0, "": unknown, so all lines are its."""
        with contextlib.suppress(OSError, ValueError, OverflowError):
            began_ms = int(os.readlink(self._run_link))
            return began_ms, run_time(began_ms)
        return 0, ""

    def _is_of_earlier_runs(self, found: os.stat_result, began_ms: int) -> bool:
        """Returns whether this run has written nothing yet, not even its mark.

        Then the file is as old as the earlier run. If it grows although it looks so, the clocks differ.
        """
        if found.st_ino == self.file or found.st_mtime * 1000 >= began_ms - CLOCKS_DIFFER_MS:
            return False
        if self._earlier_bytes < 0:
            self._earlier_bytes = found.st_size
        return found.st_size == self._earlier_bytes


def _open(link: Path) -> int:
    """Opens the file that the link leads to. Raises OSError, also if the file must not be read."""
    owner = os.lstat(link).st_uid
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(os.readlink(link), flags)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == owner:
        return descriptor
    os.close(descriptor)
    why = f"it belongs to user id {found.st_uid}, and the job to user id {owner}"
    raise PermissionError(errno.EPERM, why if stat.S_ISREG(found.st_mode) else "it is a folder or device")


def _beginning_of(run: str, descriptor: int) -> Generator[bytes, None, int]:
    """Returns where the lines of the run begin: at the first mark of it, or of the last run before it; else at 0.

    Yields b"" before each further chunk.
    """
    newest, beginning, at, rest = "", 0, 0, b""
    while data := os.pread(descriptor, CHUNK_BYTES, at + len(rest)):
        data = rest + data
        for offset, begun in marks_in(data):
            if newest < begun <= run:
                newest, beginning = begun, at + offset
        rest = data[1 - MARK_BYTES :]  # may have the first part of a mark
        at += len(data) - len(rest)
        if len(data) >= CHUNK_BYTES:
            yield b""
    return beginning


def why_unread(folder: Path) -> str:
    """Returns why the shared file of the rank with this folder is not read; "" if it is, or is not there. Blocks."""
    try:
        os.close(_open(folder / LINK_NAME))
    except FileNotFoundError:
        return ""
    except OSError as error:
        with contextlib.suppress(OSError):
            path = os.readlink(folder / LINK_NAME)
            return (
                f"cannot show output in {path}: {error.strerror}; read that file yourself, or put it on a file system "
                "on which it belongs to the user of the job (an NFS with root_squash changes the owner)"
            )
    return ""


def folder_of_log(folder: Path) -> Path | None:
    """Returns the folder of the shared file of the rank with this folder; None if it has none."""
    with contextlib.suppress(OSError, ValueError):
        return Path(os.readlink(folder / LINK_NAME)).parent
    return None
