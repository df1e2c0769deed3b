"""Does a load in the background take no CPU time from workers, and end without a trace?"""

from __future__ import annotations

import os

from worker_client.spawner.background_priority import BackgroundPriority


def test_a_background_ends() -> None:
    """Runs in a child, so that a mistake does not slow down the other tests."""
    pid = os.fork()
    if pid == 0:
        before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
        background = BackgroundPriority()
        during = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
        background.end()
        after = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
        os._exit(0 if before == after != during else 1)
    assert os.waitpid(pid, 0)[1] == 0
