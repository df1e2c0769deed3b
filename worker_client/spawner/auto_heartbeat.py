"""How does a forked worker show that its main thread executes bytecode, without a line in its script?

A thread of the worker checks now and then, and stamps the worker's page (holdfast_wire.auto_heartbeat_slots); the
supervisor reads it when a silence may have lasted too long. A main thread that waits for threads or processes that the
script has started itself counts as active, because nobody watches those.
"""

from __future__ import annotations

import _thread
import mmap
import os
import sys
import time
from contextlib import suppress
from types import FrameType

from holdfast_wire import auto_heartbeat_slots, page_layout
from holdfast_wire.spawner_settings import SpawnerSettings

from worker_client import thread_signals
from worker_client.bytecode_probe import BytecodeProbe

TICKS_PER_LIMIT = 240  # bounds how late a silence is noticed
TICK_INTERVAL_MIN_S = 0.02
TICK_INTERVAL_MAX_S = 0.1  # each tick costs 0.1 to 0.2 ms of CPU
OWN_THREADS = 2  # the main thread and the one that ticks
_WAITING_MODULES = ("multiprocessing.", "subprocess", "concurrent.futures.", "torch.multiprocessing.")
# In threading. `wait` is a condition's: an event, a semaphore, a barrier and a queue.Queue wait by it, too.
_WAITING_FOR_THREADS = frozenset({"join", "_wait_for_tstate_lock", "_shutdown", "wait"})


class AutoHeartbeat:
    """The pages of a spawner's workers; see SpawnerSettings.watch_fd. Does nothing if the job is not watched so."""

    def __init__(self, settings: SpawnerSettings) -> None:
        self.fd = settings.watch_fd
        self._interval_s = min(max(settings.watch_limit_s / TICKS_PER_LIMIT, TICK_INTERVAL_MIN_S), TICK_INTERVAL_MAX_S)
        self._mark: BytecodeProbe | None = None
        if self.fd >= 0:
            os.set_inheritable(self.fd, False)
            self._mark = BytecodeProbe()  # before the first fork, so that no worker has to load what it needs

    @property
    def kept_fds(self) -> frozenset[int]:
        """What a forked worker keeps open."""
        return frozenset({self.fd}) - {-1}

    def clear(self, local_rank: int) -> None:
        """Forgets what an earlier worker stamped. Raises OSError."""
        if self.fd >= 0:
            os.pwrite(self.fd, bytes(page_layout.PAGE_BYTES), auto_heartbeat_slots.page_offset(local_rank))

    def silence_longest_s(self, local_rank: int) -> float | None:
        """Returns for how long the worker's main thread has executed nothing at the most; None: it is not watched."""
        with suppress(OSError):
            if self.fd >= 0:
                offset = auto_heartbeat_slots.page_offset(local_rank) + 8 * page_layout.WORD_SILENCE_LONGEST_NS
                return int.from_bytes(os.pread(self.fd, 8, offset), sys.byteorder) / 1e9 or None
        return None

    def begin(self, local_rank: int) -> None:
        """Begins to stamp, in the worker. If that can't be done, the script runs without being watched."""
        if self._mark is None:
            return
        with suppress(OSError, ValueError, RuntimeError):  # the last: no thread can be started
            offset = auto_heartbeat_slots.page_offset(local_rank)
            words = memoryview(mmap.mmap(self.fd, page_layout.PAGE_BYTES, offset=offset)).cast("q")
            auto_heartbeat_slots.hold(self.fd, local_rank)
            _Ticker(words, self._interval_s, self._mark).start()


class _Ticker:
    """Stamps one page from a thread that the script does not see among its own. Made by the main thread."""

    def __init__(self, words: memoryview[int], interval_s: float, mark: BytecodeProbe) -> None:
        self._words = words
        self._interval_s = interval_s
        self._main_thread = _thread.get_ident()
        self._mark = mark
        self._never = _thread.allocate_lock()  # waiting for it is one call that a signal does not end

    def start(self) -> None:
        words, now_ns = self._words, time.monotonic_ns()
        words[page_layout.WORD_LAYOUT] = page_layout.LAYOUT_VERSION
        words[page_layout.WORD_TICK_INTERVAL_NS] = int(self._interval_s * 1e9)
        words[page_layout.WORD_TICK_NS] = words[page_layout.WORD_WATCH_SINCE_NS] = now_ns
        self._never.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        thread_signals.leave_to_the_script()
        words = self._words
        words[page_layout.WORD_WATCH] = page_layout.WATCH_ON
        try:
            self._tick()
        finally:
            words[page_layout.WORD_WATCH] = page_layout.WATCH_OFF  # Without ticks, the rank would look silent.

    def _tick(self) -> None:
        words = self._words
        while not self._never.acquire(timeout=self._interval_s):
            now_ns = time.monotonic_ns()
            silence_ns = now_ns - (words[page_layout.WORD_PENDING_SINCE_NS] or words[page_layout.WORD_TICK_NS])
            silent_since_ns = self._mark.look(now_ns)
            if silent_since_ns and self._waits_for_its_own():
                silent_since_ns = 0
            if not silent_since_ns and silence_ns > words[page_layout.WORD_SILENCE_LONGEST_NS]:
                words[page_layout.WORD_SILENCE_LONGEST_NS] = silence_ns
            words[page_layout.WORD_PENDING_SINCE_NS] = silent_since_ns
            words[page_layout.WORD_TICK_NS] = now_ns

    def _waits_for_its_own(self) -> bool:
        """Returns whether the innermost call is such a wait: what a signal handler does on top of one is not."""
        frame = sys._current_frames().get(self._main_thread)  # pyright: ignore[reportPrivateUsage]
        if frame is not None and _module(frame) == "threading":
            return frame.f_code.co_name in _WAITING_FOR_THREADS and _may_have_others()
        while frame is not None and _module(frame) == "selectors":
            frame = frame.f_back
        return frame is not None and _module(frame).startswith(_WAITING_MODULES)


def _may_have_others() -> bool:
    """Returns whether there may be another thread, be it one of C++: without one, nobody is left to end a wait."""
    try:
        return len(os.listdir("/proc/self/task")) > OWN_THREADS
    except OSError:  # no descriptor or memory is left, or there is no /proc
        return True


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""
