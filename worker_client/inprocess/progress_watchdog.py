"""Does the main thread execute bytecode? A thread looks now and then, and writes it into the rank's page.

Python runs pending calls on the main thread, between two bytecodes. The one that is used here is sem_post() of the C
library: no Python code is involved that an exception could hit, and to look costs no system call.
"""

from __future__ import annotations

import ctypes
import threading
from datetime import timedelta
from time import monotonic, monotonic_ns
from typing import NamedTuple

from worker_client import thread_signals
from worker_client.inprocess.watching.call_watch import CallWatch

TICK_INTERVAL_MIN_S = 0.02
TICKS_PER_SOFT_TIMEOUT = 240  # a hang is noticed that much later at most; each tick costs 0.1 to 0.2 ms of CPU
SEMAPHORE_BYTES = 64  # more than sem_t has anywhere
STOP_TIMEOUT_S = 1.0
THREAD_NAME = "holdfast-watchdog"


class Timestamp(NamedTuple):
    """When a rank was last heard, by time.monotonic(); None where that kind of sign is not expected."""

    auto: float | None = None  # its main thread executed bytecode
    manual: float | None = None  # it called ping()

    def is_timed_out(self, timeout: timedelta) -> bool:
        """Whether either sign is older than that."""
        oldest = monotonic() - timeout.total_seconds()
        return any(stamp is not None and stamp < oldest for stamp in self)


class _MainThreadMark:
    """A pending call, at most one at a time. One object for the whole process: a call may be pending when a Wrapper
    has ended, and then posts to memory that must still be there.
    """

    def __init__(self) -> None:
        library = ctypes.PyDLL(None)  # called with the GIL held: all of these return at once
        self._semaphore = ctypes.create_string_buffer(SEMAPHORE_BYTES)
        self._address = ctypes.c_void_p(ctypes.addressof(self._semaphore))
        self._post = ctypes.cast(library.sem_post, ctypes.c_void_p)
        self._try_wait = library.sem_trywait
        self._add = ctypes.pythonapi.Py_AddPendingCall
        self._add.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._since_ns = 0
        library.sem_init(self._address, 0, 0)

    def look(self, now_ns: int) -> int:
        """Since when the main thread has executed nothing; 0 if it has since the last look."""
        if self._since_ns and self._try_wait(self._address) != 0:
            return self._since_ns
        # With no room for a pending call there is nothing to wait for.
        self._since_ns = now_ns if self._add(self._post, self._address) == 0 else 0
        return 0


_mark: _MainThreadMark | None = None


def _main_thread_mark() -> _MainThreadMark:
    global _mark
    if _mark is None:
        _mark = _MainThreadMark()
    return _mark


class ProgressWatchdog:
    """Ticks into `watch` from `start()` to `stop()`, from a daemon thread."""

    def __init__(self, watch: CallWatch, interval_s: float, soft_timeout_s: float) -> None:
        """`interval_s` is an upper bound."""
        self._watch = watch
        self._interval_s = min(interval_s, max(soft_timeout_s / TICKS_PER_SOFT_TIMEOUT, TICK_INTERVAL_MIN_S))
        self._stopping = threading.Lock()  # held while it ticks: to wait for a lock is one call, for an Event many
        self._mark = _main_thread_mark()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        self._watch.ticks_every(int(self._interval_s * 1e9))
        self._watch.tick(monotonic_ns(), 0)
        self._stopping.acquire()
        self._thread.start()

    def stop(self) -> None:
        """Idempotent; also without `start()`."""
        if self._stopping.locked():
            self._stopping.release()
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        thread_signals.leave_to_the_script()
        while not self._stopping.acquire(timeout=self._interval_s):
            now_ns = monotonic_ns()
            self._watch.tick(now_ns, self._mark.look(now_ns))
