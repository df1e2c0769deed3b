"""Which thread records in the rank's page that the main thread executes bytecode, and how often?"""

from __future__ import annotations

import threading
from datetime import timedelta
from time import monotonic, monotonic_ns
from typing import NamedTuple

from worker_client import thread_signals
from worker_client.bytecode_probe import bytecode_probe
from worker_client.inprocess.watching.main_thread_watch import MainThreadWatch

TICK_INTERVAL_MIN_S = 0.02
TICK_INTERVAL_MAX_S = 60.0  # the supervisor believes no longer one
TICKS_PER_SOFT_TIMEOUT = 240  # bounds how late a hang is noticed; each tick costs 0.1 to 0.2 ms of CPU
STOP_TIMEOUT_S = 1.0
THREAD_NAME = "holdfast-watchdog"


class Timestamp(NamedTuple):
    """When a rank last showed each sign of life, by time.monotonic(); None: that sign is not expected."""

    auto: float | None = None  # its main thread executed bytecode
    manual: float | None = None  # it called ping()

    def is_timed_out(self, timeout: timedelta) -> bool:
        """Returns whether either sign is older than `timeout`."""
        oldest = monotonic() - timeout.total_seconds()
        return any(stamp is not None and stamp < oldest for stamp in self)


class ProgressWatchdog:
    """Writes ticks into `watch` from a daemon thread, from `start()` to `stop()`."""

    def __init__(self, watch: MainThreadWatch, interval_s: float, soft_timeout_s: float) -> None:
        """`interval_s` is an upper bound, unless it is too short."""
        self._watch = watch
        wanted_s = min(interval_s, soft_timeout_s / TICKS_PER_SOFT_TIMEOUT, TICK_INTERVAL_MAX_S)
        self._interval_s = max(wanted_s, TICK_INTERVAL_MIN_S)
        self._stopping = threading.Lock()  # held while it ticks: waiting for a lock is one call, for an Event many
        self._mark = bytecode_probe()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        self._watch.ticks_every(int(self._interval_s * 1e9))
        self._watch.tick(monotonic_ns(), 0)
        self._stopping.acquire()
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread. Idempotent; may be called without `start()`."""
        if self._stopping.locked():
            self._stopping.release()
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        thread_signals.leave_to_the_script()
        while not self._stopping.acquire(timeout=self._interval_s):
            now_ns = monotonic_ns()
            self._watch.tick(now_ns, self._mark.look(now_ns))
