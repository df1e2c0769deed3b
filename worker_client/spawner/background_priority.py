"""How is a load in the background kept from taking CPU time that running workers need?"""

from __future__ import annotations

import os
from contextlib import suppress

_NICEST = 19


class BackgroundPriority:
    """Low priority from construction until `end`, which must come before any fork of a worker.

    Only a privileged process can undo `nice`, which a worker must not inherit. Any other becomes a batch process, which
    never takes the CPU from a process that has just woken but otherwise has an equal share.
    """

    def __init__(self) -> None:
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._policy = os.sched_getscheduler(0)
        self._is_nice = _can_return_to(self._nice)
        if self._is_nice:
            os.setpriority(os.PRIO_PROCESS, 0, _NICEST)
        elif self._policy == os.SCHED_OTHER:
            with suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    def end(self) -> None:
        """Restores the first priority. Raises OSError if that is refused."""
        if self._is_nice:
            os.setpriority(os.PRIO_PROCESS, 0, self._nice)
        elif os.sched_getscheduler(0) != self._policy:
            os.sched_setscheduler(0, self._policy, os.sched_param(0))


def _can_return_to(nice: int) -> bool:
    """Returns whether the priority can be restored. A child tries it: capabilities don't tell, and it is final."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, _NICEST)
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0
