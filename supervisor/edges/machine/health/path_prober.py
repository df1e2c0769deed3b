"""How is a path checked without anyone having to wait for it? A small process forks for each look.

It runs as a file, without modules that are slow to load. A look at a file system that does not answer may stay in the
kernel, where no signal reaches it: only that fork is stuck. stdin is a SOCK_SEQPACKET socket. A request is `NUMBER KIND
PATH`, or `NUMBER k` to kill a look. The fork answers `NUMBER ERRNO TEXT` itself; the text of an error is empty, or
UNLISTED. After each fork's end, `NUMBER -` follows. All ends with the socket.
"""

from __future__ import annotations

import os
import select
import signal
import stat

LINK = 0
REQUEST_BYTES_MAX = 8192
ANSWER_BYTES_MAX = 64 * 1024
READ_BYTES = 4096
NAMES_MAX = 64  # of a folder, which may have millions
MOUNTINFO_CHUNK_BYTES = 1 << 20
NETWORK_TYPES = (b"lustre", b"nfs", b"nfs4")
UNLISTED = b"unlisted"


class UnlistedError(PermissionError):
    """Raised if a folder is there, but this user may not list it."""


def look(kind: str, path: bytes) -> bytes:
    """Looks at a path and returns what it found. Raises OSError if the path can't be used. May hang."""
    if kind == "m":
        return _network_mounts(path)
    if kind == "t":
        return _read(path)
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode) or kind == "d":
        try:
            _list(path)
        except PermissionError as error:
            raise UnlistedError(error.errno, error.strerror) from error
    elif stat.S_ISREG(mode):
        _read(path)
    return b""


def _list(path: bytes) -> None:
    with os.scandir(path) as names:
        for count, _ in enumerate(names, start=1):
            if count == NAMES_MAX:
                return


def _read(path: bytes) -> bytes:
    # Non-blocking: a FIFO in place of the file would wait for a writer.
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return os.read(opened, READ_BYTES)
    finally:
        os.close(opened)


def _network_mounts(path: bytes) -> bytes:
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        while chunk := os.read(opened, MOUNTINFO_CHUNK_BYTES):
            text += chunk
    finally:
        os.close(opened)
    lines = text.splitlines(keepends=True)
    network = {line.split(b" ")[4] for line in lines if _type(line) in NETWORK_TYPES}
    # With all mounts at the same place: one may hide another.
    return b"".join(line for line in lines if line.count(b" ") > 4 and line.split(b" ")[4] in network)


def _type(line: bytes) -> bytes:
    return line.partition(b" - ")[2].split(b" ")[0]


def _answer(number: bytes, kind: str, path: bytes) -> None:
    """Looks and answers, in the fork."""
    try:
        answer = b"0 " + look(kind, path)
    except UnlistedError as error:
        answer = b"%d %b" % (error.errno or 0, UNLISTED)
    except OSError as error:
        answer = b"%d " % (error.errno or 0)
    os.write(LINK, b"%b %b" % (number, answer[:ANSWER_BYTES_MAX]))


class Prober:
    """Forks, reports the ends of the forks, and ends with its link."""

    def __init__(self) -> None:
        self._poller = select.poll()
        self._poller.register(LINK, select.POLLIN)
        self._forks: dict[int, tuple[bytes, int]] = {}  # pidfd -> number of the look, pid

    def run(self) -> None:
        while True:
            for descriptor, _ in self._poller.poll():
                if descriptor != LINK:
                    self._reap(descriptor)
                    continue
                request = os.read(LINK, REQUEST_BYTES_MAX)
                if not request:
                    self._end()
                    return
                self._take(request)

    def _take(self, request: bytes) -> None:
        number, kind, *path = request.split(b" ", 2)
        if kind == b"k":
            for looking, pid in self._forks.values():
                if looking == number:
                    os.kill(pid, signal.SIGKILL)
            return
        try:
            pid = os.fork()
        except OSError as error:
            os.write(LINK, b"%b %d " % (number, -(error.errno or 1)))
            return
        if not pid:
            try:
                _answer(number, kind.decode(), path[0])
            finally:
                os._exit(0)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:  # no descriptor is left: this look fails, the others go on
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.write(LINK, b"%b %d " % (number, -(error.errno or 1)))
            return
        self._forks[pidfd] = number, pid
        self._poller.register(pidfd, select.POLLIN)

    def _reap(self, pidfd: int) -> None:
        number, pid = self._forks.pop(pidfd)
        self._poller.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(pid, 0)
        os.write(LINK, b"%b -" % number)

    def _end(self) -> None:
        for _, pid in self._forks.values():
            os.kill(pid, signal.SIGKILL)  # A fork that is stuck in the kernel ends when its call returns.


if __name__ == "__main__":
    os.chdir("/")
    Prober().run()
    os._exit(0)
