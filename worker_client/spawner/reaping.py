"""How did a process end?"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple


class Ending(NamedTuple):
    """Exactly one of `code` and `signal` is not None."""

    pid: int
    code: int | None
    signal: int | None
    core_dumped: bool

    def says(self) -> str:
        if self.signal is None:
            return f"it exited with code {self.code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        return f"it was ended by {name}"


def reap(kind: int, which: int) -> Ending | None:
    """Reaps the child (kind P_PIDFD or P_PID) if it has ended; returns None if not, or if it is not ours."""
    try:
        status = os.waitid(kind, which, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    return None if status is None else _ending(status)


def next_ended_child() -> int | None:
    """Returns the pid of some child that has ended and is not reaped yet."""
    try:
        status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if status is None else status.si_pid


def next_stop_or_continuation() -> tuple[int, int] | None:
    """Returns the pid of some child that was stopped or continued, and the signal that stopped it (0: continued).

    Each is returned once. A child that a debugger holds is not stopped.
    """
    try:
        status = os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
    except ChildProcessError:
        return None
    if status is None:
        return None
    return status.si_pid, status.si_status if status.si_code == os.CLD_STOPPED else 0


def _ending(status: os.waitid_result) -> Ending:
    if status.si_code == os.CLD_EXITED:
        return Ending(status.si_pid, status.si_status, None, core_dumped=False)
    return Ending(status.si_pid, None, status.si_status, core_dumped=status.si_code == os.CLD_DUMPED)
