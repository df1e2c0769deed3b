"""Where are the threads of a worker that can't answer because one of them holds the GIL?

Its client has named a signal that makes faulthandler append all stacks to a memfd of the worker. The client is not
trusted: only a signal that is ignored by default is sent, and only a memfd is opened and truncated.
"""

from __future__ import annotations

import os
import signal
import stat

from supervisor.edges.workers.stacks.stack_text import is_cut
from supervisor.ports.timed_waits import pause

HARMLESS_SIGNALS = (signal.SIGURG, signal.SIGWINCH)  # ignored if it comes late, or after an exec
STACKS_BYTES_MAX = 1024 * 1024
LOOK_INTERVAL_S = 0.004
QUIET_LOOKS = 3  # faulthandler writes in pieces and marks no end: this many checks without a change are the end
QUIET_LOOKS_CUT = 50  # of a text that is not at the end of a frame: on a busy machine, the rest comes late


async def ask_by_signal(pid: int, number: int, descriptor: int) -> str | None:
    """Returns faulthandler's output, or None if unavailable. Waits without limit: the caller sets one."""
    if pid <= 0 or number not in HARMLESS_SIGNALS or descriptor < 0:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        file = _open_memfd(f"/proc/{pid}/fd/{descriptor}")
        if file is None:
            return None
        try:
            return await _signal_and_read(pidfd, number, file)
        finally:
            os.close(file)
    except OSError:
        return None  # It has ended meanwhile.
    finally:
        os.close(pidfd)


async def _signal_and_read(pidfd: int, number: int, file: int) -> str:
    os.ftruncate(file, 0)
    signal.pidfd_send_signal(pidfd, number)
    size, quiet_looks = 0, 0
    while True:
        await pause(LOOK_INTERVAL_S, why="the kernel tells nobody of writes to a memfd (no inotify since 6.13)")
        before, size = size, os.fstat(file).st_size
        quiet_looks = quiet_looks + 1 if size == before > 0 else 0
        if quiet_looks >= QUIET_LOOKS:
            text = os.pread(file, STACKS_BYTES_MAX, 0).decode(errors="replace")
            if _ends_with_a_frame(text) or quiet_looks >= QUIET_LOOKS_CUT:
                return text


def _ends_with_a_frame(text: str) -> bool:
    """Returns whether this may be all: the last line is whole, and a frame of a thread (indented) or that of a cut."""
    return text.endswith("\n") and (is_cut(text) or text.rstrip("\n").rpartition("\n")[2].startswith("  "))


def _open_memfd(path: str) -> int | None:
    """Opens only a memfd: a worker could name any file that it has open, and our rights would truncate it."""
    try:
        if not os.readlink(path).startswith("/memfd:"):
            return None
        file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    found = os.fstat(file)
    is_memfd = stat.S_ISREG(found.st_mode) and found.st_nlink == 0
    if is_memfd and os.readlink(f"/proc/self/fd/{file}").startswith("/memfd:"):
        return file
    os.close(file)
    return None
