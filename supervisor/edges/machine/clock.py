"""What time is it? The only place that reads a clock; everything else gets the time as an argument."""

from __future__ import annotations

import time


class Clock:
    """See ports.Clock."""

    def now_s(self) -> float:
        """CLOCK_MONOTONIC in seconds: what deadlines and ages are counted in."""
        return time.monotonic()

    def unix_ns(self) -> int:
        """Wall-clock time, for people only: it may jump."""
        return time.time_ns()
