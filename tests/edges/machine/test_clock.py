"""The clock is the kernel's."""

from __future__ import annotations

import time

from supervisor.edges.machine.clock import Clock


def test_monotonic_seconds_and_wall_nanoseconds():
    before_s, before_ns = time.monotonic(), time.time_ns()
    clock = Clock()
    now_s, now_ns = clock.now_s(), clock.unix_ns()
    assert before_s <= now_s <= time.monotonic()
    assert before_ns <= now_ns <= time.time_ns()
