"""What time is it? The only place that reads a clock; everything else gets the time as an argument."""

from __future__ import annotations

import time


class Clock:
    """Reads the clocks of the machine. See ports.Clock."""

    def now_s(self) -> float:
        """Returns CLOCK_MONOTONIC in seconds: deadlines and ages are counted in it."""
        return time.monotonic()

    def boot_ns(self) -> int:
        """Returns CLOCK_BOOTTIME, which counts the time in which the machine was suspended, too."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def unix_ns(self) -> int:
        """Returns wall-clock time. It may jump, so it is for people only."""
        return time.time_ns()
