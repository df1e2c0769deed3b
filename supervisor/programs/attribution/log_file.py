"""How is a log file read that may be huge, sparse, endless, or no file at all?

The caller gets an analysis after a bounded time: the beginning of what is new is read up to a number of bytes and
seconds, then the end. Holes are skipped. Only a regular file is opened, and only if its real place is the one that was
asked for: nothing in the folder may lead out of it, even if it changes in this moment.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

from holdfast_wire.run_mark import run_begun_by

from supervisor.core.attribution.log_verdict import LINE_CHARACTERS_MAX, Analysis

READ_BYTES = 1 << 20
FIRST_BYTES_MAX, FIRST_S = 1 << 30, 20.0  # of what is new in a log at one look
LAST_BYTES, LAST_S = 16 << 20, 10.0  # of its end, if that was not enough
LINE_BYTES_MAX = 4 * LINE_CHARACTERS_MAX  # kept of one line; UTF-8 needs 4 bytes for a character at most


class LogFile:
    """One log, as far as it has been read. Only one thread may use it at a time.

    If an earlier run of the job has begun the file, what is known is that of the newest run. A file that takes the
    place of the one that was read, or that was cut short, is read from its beginning.
    """

    def __init__(self, path: str, *, tail_lines: int) -> None:
        """`tail_lines`: how many of its last lines to keep."""
        self.path = path
        self.analysis = Analysis()
        self.tail: deque[str] = deque(maxlen=tail_lines)
        self.skipped_bytes = 0  # holes and what was too much
        self.size_bytes = 0
        self._file = (0, 0)  # its device and inode
        self._offset = 0
        self._rest = b""
        self._run = ""  # that has written the lines taken last

    def read_on(self, now_s: Callable[[], float], *, to_the_end: bool) -> None:
        """Reads the added lines; an unfinished last one only if `to_the_end`. Raises OSError. Blocks."""
        with _opened(self.path) as descriptor:
            found = os.fstat(descriptor)
            self.size_bytes = size = found.st_size  # A log that grows meanwhile is read on next time.
            if (found.st_dev, found.st_ino) != self._file or size < self._offset:
                self._file, self._offset, self._rest = (found.st_dev, found.st_ino), 0, b""
                self._begin_run("", lines=0)
            for bytes_max, seconds in ((FIRST_BYTES_MAX, FIRST_S), (LAST_BYTES, LAST_S)):
                until_s = now_s() + seconds
                unread_bytes = bytes_max
                while unread_bytes > 0 and self._offset < size and now_s() <= until_s:
                    got_bytes = self._read(descriptor, min(READ_BYTES, unread_bytes), size)
                    if not got_bytes:
                        break  # The log became shorter, or only a hole was left.
                    unread_bytes -= got_bytes
                self._skip_to(size - LAST_BYTES)
            self._skip_to(size)
        if self._rest and to_the_end:
            self._take([self._rest])
            self._rest = b""

    def _read(self, descriptor: int, most: int, size: int) -> int:
        """Reads the next data, which may lie behind a hole. Returns their number of bytes."""
        self._skip_to(min(size, _next_data(descriptor, self._offset)))
        data = os.pread(descriptor, min(most, size - self._offset), self._offset)
        self._offset += len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LINE_BYTES_MAX]
        self._take(lines)
        return len(data)

    def _skip_to(self, offset: int) -> None:
        if offset > self._offset:
            if self._rest:
                self._take([self._rest])
            self.skipped_bytes += offset - self._offset
            self._offset = offset
            self._rest = b""

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            if (run := run_begun_by(line)) and run != self._run:  # Each node may write a mark.
                self._begin_run(run, lines=self.analysis.lines)
            text = line[:LINE_BYTES_MAX].decode(errors="replace")[:LINE_CHARACTERS_MAX]
            self.analysis.take(text)
            self.tail.append(text)

    def _begin_run(self, run: str, *, lines: int) -> None:
        """Forgets what was known. `lines`: of the file, before this run."""
        self._run, self.analysis = run, Analysis()
        self.analysis.lines = lines
        self.tail.clear()
        self.skipped_bytes = 0


@contextmanager
def _opened(path: str) -> Generator[int]:
    """Opens a regular file whose real path is `path`. Raises OSError.

    O_PATH opens the name without its file, so a FIFO or a device notices nothing.
    """
    name = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(name).st_mode):
            raise OSError(None, "it is not a regular file")
        link = f"/proc/self/fd/{name}"
        if os.readlink(link) != path:
            raise OSError(None, "it is not where its path says; submit its real path")
        descriptor = os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _next_data(descriptor: int, offset: int) -> int:
    """Returns where the next data begin; the end of the file if only a hole is left."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return max(offset, os.fstat(descriptor).st_size)
        return offset  # The file system knows no holes.
