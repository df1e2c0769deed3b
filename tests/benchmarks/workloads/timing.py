"""What does one call take, as its caller sees it?"""

from __future__ import annotations

import time
from collections.abc import Callable


def timed(call: Callable[[], None], calls: int, pace_s: float) -> list[int]:
    """Returns what each call took, including one reading of the clock."""
    took_ns: list[int] = []
    due_s = time.monotonic()
    for _ in range(calls):
        if pace_s:
            due_s += pace_s
            time.sleep(max(0.0, due_s - time.monotonic()))
        time.perf_counter_ns()  # the first reading after a sleep is slow, which is not the call's cost
        start_ns = time.perf_counter_ns()
        call()
        took_ns.append(time.perf_counter_ns() - start_ns)
    return took_ns
