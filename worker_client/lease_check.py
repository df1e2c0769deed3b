"""Does this rank's lease hold, so that no other node can have taken the place of this one?

The supervisor writes the lease's end to the page that it shares with the rank. Without such a page, or if that end is
over, the rank asks, and waits a little: a supervisor that was paused together with the rank may yet extend the lease.
"""

from __future__ import annotations

import time

from holdfast_wire import page_layout

from worker_client.workload_monitoring import Monitoring

WAIT_S = 5.0  # longer than a supervisor takes to come back, and to hear from its leader


def now_ns() -> int:
    """Returns CLOCK_BOOTTIME, which also counts while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def holds(monitoring: Monitoring) -> bool:
    """Blocks until the lease holds, at most WAIT_S; returns whether it does. Returns at once if it holds already.

    Returns True if no supervisor has answered this rank, or only one that grants no leases.
    """
    give_up_s = time.monotonic() + WAIT_S
    while True:
        until_ns = monitoring.progress.lease_until_ns
        asked_ns = now_ns()
        if until_ns == page_layout.LEASE_UNKNOWN or asked_ns < until_ns:
            return True
        left_s = give_up_s - time.monotonic()
        left_ns = monitoring.ask_lease(timeout_s=left_s) if left_s > 0 else None
        if left_ns is None:
            return False
        if now_ns() < asked_ns + left_ns:
            return True
