"""Does what the supervisor says at a terminal begin on a new line, though its spawner prints there, too?

Both share a memory file, in which whoever prints notes whether the last line on stderr is unfinished.
"""

from __future__ import annotations

import os

_UNFINISHED, _FINISHED = b"\1", b"\0"


class ConsoleLine:
    """The last line on this process's stderr. Never raises: without the memory file, every line counts as finished."""

    def __init__(self, fd: int = -1) -> None:
        """`fd`: of the file that another process has made; -1: makes one."""
        self._is_shared = _is_same(1, 2)
        self._was_finished = True  # when this process last printed
        self.fd = fd
        try:
            if fd < 0:
                self.fd = os.memfd_create("holdfast-console-line", os.MFD_CLOEXEC)
            else:
                os.set_inheritable(fd, False)
        except OSError:  # A wrapper of the interpreter may have closed it.
            self.fd = -1

    def printed(self, number: int, last: int) -> None:
        """Notes the last byte that was written to stdout (1) or stderr (2)."""
        is_finished = last == 10
        if self.fd < 0 or (number == 1 and not self._is_shared) or (is_finished and self._was_finished):
            return  # Whole lines after whole lines cost nothing.
        self._was_finished = is_finished
        _put(self.fd, _FINISHED if is_finished else _UNFINISHED)

    def take(self) -> bool:
        """Returns whether the line is unfinished. The caller finishes it."""
        try:
            is_unfinished = self.fd >= 0 and os.pread(self.fd, 1, 0) == _UNFINISHED
        except OSError:
            return False
        if is_unfinished:
            _put(self.fd, _FINISHED)
        return is_unfinished


def _put(fd: int, state: bytes) -> None:
    try:
        os.pwrite(fd, state, 0)
    except OSError:
        return


def _is_same(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False
