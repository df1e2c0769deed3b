"""Where does a worker's output end: on the console, or in a file with a size limit?"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from holdfast_wire.console_line import ConsoleLine
from holdfast_wire.moved_log_file import GONE, LOOK_S, OPEN_AGAIN, has_moved

# How much may wait for a slow console before the workers that write to it are held back.
CONSOLE_BACKLOG_BYTES_MAX = 1024 * 1024
CONSOLE_PIPE_BYTES = 1024 * 1024
_NEWLINE = 10

_REMEDIES = {
    errno.ENOSPC: "; free space on that disk",
    errno.EDQUOT: "; free space on that disk",
    errno.EFBIG: "; raise the limit on the size of files (ulimit -f)",
    errno.EINVAL: "; move it away",
}


class Console:
    """The spawner's own stdout or stderr, written without blocking; after an error all further output is dropped."""

    def __init__(self, fd: int, line: ConsoleLine | None = None) -> None:
        """`line`: where it is noted whether the last line is finished."""
        self._number, self._line = fd, line
        self._name = "stderr" if fd == 2 else "stdout"
        self.fd = _own_description(fd)
        mode = os.fstat(self.fd).st_mode
        self._is_pipe, self._is_file = stat.S_ISFIFO(mode), stat.S_ISREG(mode)
        if self._is_pipe:
            with suppress(OSError):
                fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, CONSOLE_PIPE_BYTES)
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self.broken = False
        self.trouble = ""  # why somebody who still reads it misses output
        self.lost_bytes = 0  # for that reason, as far as nobody has reported them

    @property
    def is_full(self) -> bool:
        return self._backlog_bytes >= CONSOLE_BACKLOG_BYTES_MAX

    @property
    def can_splice(self) -> bool:
        """Whether bytes can be moved into it from a pipe without copying them."""
        return self._is_pipe and not self._backlog and not self.broken

    @property
    def has_backlog(self) -> bool:
        return self._backlog_bytes > 0

    def write(self, *parts: bytes | memoryview) -> None:
        """Writes what it can now and keeps the rest. The caller stops reading from workers while `is_full`."""
        sent = 0 if self._backlog or self.broken else self._put(parts)
        for part in parts:
            if self.broken:
                self._lose(len(part))
            elif sent < len(part):
                self._backlog.append(bytes(part[sent:]))
                self._backlog_bytes += len(part) - sent
            sent = max(0, sent - len(part))
        if self._is_file:
            self.flush()  # The disk is full or at a limit, which the next write says: epoll does not watch files.

    def splice_from(self, pipe: int, bytes_max: int) -> int:
        """Splices `pipe` into the console; returns how many bytes. Raises BlockingIOError if either is not ready."""
        try:
            moved = os.splice(pipe, self.fd, bytes_max, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError:
            raise
        except OSError as error:
            self._break(error)
            raise BlockingIOError from None
        if self._line is not None and moved:
            self._line.printed(self._number, _NEWLINE)  # Nobody has seen the bytes: a whole line is likelier.
        return moved

    def flush(self) -> None:
        """Writes as much of the backlog as it can now."""
        while self._backlog and not self.broken:
            sent = self._put((self._backlog[0],))
            self._backlog_bytes -= sent
            if self.broken:
                return
            if sent < len(self._backlog[0]):
                self._backlog[0] = self._backlog[0][sent:]
                if self._is_file and sent:
                    continue
                return
            self._backlog.popleft()

    def _put(self, parts: tuple[bytes | memoryview, ...]) -> int:
        try:
            sent = os.writev(self.fd, parts)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._break(error)
            return 0
        if self._line is not None and sent:
            self._line.printed(self._number, _byte_at(parts, sent - 1))
        return sent

    def _break(self, error: OSError) -> None:
        """Continues without a console after EPIPE, EIO of a closed terminal, or a full disk behind it."""
        self.broken = True
        if error.errno not in (errno.EPIPE, errno.EIO):
            self.trouble = f"cannot write to {self._name}: {_in_words(error)}"
        self._lose(self._backlog_bytes)
        self._backlog.clear()
        self._backlog_bytes = 0

    def _lose(self, count: int) -> None:
        self.lost_bytes += count if self.trouble else 0


def _byte_at(parts: tuple[bytes | memoryview, ...], index: int) -> int:
    for part in parts:
        if index < len(part):
            return part[index]
        index -= len(part)
    return 0


class LogFile:
    """A file that takes at most `bytes_max` bytes (0: no limit), then starts again after one rotation to `<path>.1`."""

    def __init__(self, path: str, bytes_max: int, on_drop: Callable[[int, str], None], *, needed: bool) -> None:
        """Opens the file. If that fails, raises OSError if it is `needed`, else tries again at each write."""
        self.path = path
        self._bytes_max = bytes_max
        self._on_drop = on_drop
        self._fd = -1
        self._size_bytes = 0
        self._look_at_s = 0.0  # whether the file is still in its place
        self._has_moved = False  # and no new one was opened yet
        self._left_fd = -1  # held till then, so that the new file gets another inode: readers know a file by it
        try:
            self._open()
        except OSError:
            if needed:
                raise

    def write(self, data: bytes) -> None:
        """Appends `data`; what the disk does not take is dropped and counted."""
        if data:
            self._leave_if_moved()
        while data:
            room = self._bytes_max - self._size_bytes if self._bytes_max else len(data)
            if room <= 0:
                if not self._rotate(len(data)):
                    return
                continue
            part = data[:room]
            if not self._append(part, len(data)):
                return
            data = data[len(part) :]

    def close(self) -> None:
        self._let_go()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _leave_if_moved(self) -> None:
        """Leaves a file that was removed or moved away, and counts removed bytes as dropped."""
        now_s = time.monotonic()
        if self._fd < 0 or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_S
        if not has_moved(self._fd, self.path):
            return
        self._let_go()
        self._left_fd, self._fd, self._size_bytes, self._has_moved = self._fd, -1, 0, True
        if removed_bytes := _removed_bytes(self._left_fd):
            self._on_drop(removed_bytes, f"{self.path} was removed; later output goes to a new file there")

    def _let_go(self) -> None:
        """Closes the file that was left."""
        if self._left_fd >= 0:
            with suppress(OSError):  # a file server that has removed it (ESTALE)
                os.close(self._left_fd)
            self._left_fd = -1

    def _append(self, data: bytes, waiting_bytes: int) -> bool:
        done = 0
        try:
            if self._fd < 0:
                self._open()
            while done < len(data):
                done += os.write(self._fd, data[done:] if done else data)
        except OSError as error:
            self._size_bytes += done
            self._on_drop(waiting_bytes - done, f"cannot write {self.path}: {_in_words(error)}")
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._let_go()  # People may have removed it to make room.
            if error.errno in OPEN_AGAIN:
                with suppress(OSError):
                    self.close()
                self._fd = -1
            return False
        self._size_bytes += done
        return True

    def _rotate(self, waiting_bytes: int) -> bool:
        older = -1
        try:
            self.close()
            with suppress(OSError):  # Held, so that the new file gets another inode: readers know a file by it.
                older = os.open(f"{self.path}.1", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.replace(self.path, f"{self.path}.1")
            self._open()
        except OSError as error:
            with suppress(OSError):
                self._open()
            self._on_drop(waiting_bytes, f"cannot rotate {self.path}: {_in_words(error)}")
            return False
        finally:
            if older >= 0:
                os.close(older)
        return True

    def _open(self) -> None:
        fd = open_log(self.path, os.O_APPEND)
        try:
            if self._has_moved:
                os.write(fd, GONE)
            self._size_bytes = os.fstat(fd).st_size
        except OSError:
            os.close(fd)
            raise
        self._fd, self._has_moved = fd, False
        self._let_go()


def _removed_bytes(fd: int) -> int:
    """Returns the size of a file that has no name any more, 0 of any other."""
    try:
        found = os.fstat(fd)
    except OSError:
        return 0
    return 0 if found.st_nlink else found.st_size


def _in_words(error: OSError) -> str:
    remedy = _REMEDIES.get(error.errno or 0, "")
    return f"{error.strerror}{remedy}"


def open_log(path: str, flag: int) -> int:
    """Returns a descriptor of the file, which is created with its folders if missing. `flag`: O_APPEND or O_TRUNC.

    Raises OSError, also for anything that would block: a pipe, a device, a link that may lead to one.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flag
    try:
        try:
            fd = os.open(path, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            fd = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ELOOP, errno.EISDIR):
            raise _irregular(path) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _irregular(path)
    os.set_blocking(fd, True)
    return fd


def _irregular(path: str) -> OSError:
    return OSError(errno.EINVAL, "a pipe, a device, a link or a folder stands in the place of a log file", path)


def _own_description(fd: int) -> int:
    """Returns a descriptor for writing to `fd`, without blocking if possible.

    O_NONBLOCK belongs to the open file description, which the shell that started us shares, so pipes and terminals are
    reopened. A regular file keeps its description (its offset is shared, and writes do not wait for a reader); a socket
    can't be reopened and may block.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with suppress(OSError):
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return os.dup(fd)
