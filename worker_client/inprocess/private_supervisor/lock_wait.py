"""How is a wait for a kernel lock limited? flock() itself has no timeout."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading

from worker_client import thread_signals


def locked_within(descriptor: int, operation: int, *, wait_s: float, cancel: int = -1) -> bool:
    """Returns whether flock() was granted within `wait_s`, and before the descriptor `cancel` became readable.

    flock() has no timeout, so a separate thread waits in it. After the wait is given up, a lock granted later is
    released at once.
    """
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        return True
    if wait_s <= 0:
        return False
    wait = _Wait(descriptor, operation)
    return wait.has_begun and wait.until_locked(wait_s, cancel)


class _Wait:
    """A wait on a thread that owns copies of the descriptors it uses."""

    def __init__(self, descriptor: int, operation: int) -> None:
        self._guard = threading.Lock()  # of the two below
        self._is_locked = False
        self._is_given_up = False
        self._ended = os.eventfd(0, os.EFD_CLOEXEC)
        self._end = os.dup(self._ended)
        self._descriptor = os.dup(descriptor)
        self._operation = operation
        self.has_begun = True
        try:
            threading.Thread(target=self._lock, name="holdfast-lock-wait", daemon=True).start()
        except RuntimeError:  # No more threads can be started.
            self.has_begun = False
            for each in (self._ended, self._end, self._descriptor):
                os.close(each)

    def until_locked(self, wait_s: float, cancel: int) -> bool:
        poller = select.poll()
        poller.register(self._ended, select.POLLIN)
        if cancel >= 0:
            poller.register(cancel, select.POLLIN)
        try:
            poller.poll(wait_s * 1000)
        finally:
            with self._guard:
                self._is_given_up = not self._is_locked
            os.close(self._ended)
        return not self._is_given_up

    def _lock(self) -> None:
        thread_signals.leave_to_the_script()
        try:
            fcntl.flock(self._descriptor, self._operation)
            with self._guard:
                self._is_locked = not self._is_given_up
                if self._is_given_up:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except OSError:
            return  # The file system has no locks: as if never granted.
        finally:
            os.close(self._descriptor)
            os.eventfd_write(self._end, 1)
            os.close(self._end)


def is_readable(descriptor: int) -> bool:
    poller = select.poll()
    if descriptor >= 0:
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(0))
