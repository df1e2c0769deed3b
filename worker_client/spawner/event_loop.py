"""Which descriptor or deadline has something to do now? The spawner's one epoll loop."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
_EVENTS_MAX = 256
SLICE_S = 1.0

Callback = Callable[[], None]


class Events:
    """Descriptors and timers with their callbacks. Everything runs in the thread that calls `run_once`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._timers: dict[str, tuple[float, Callback]] = {}

    def watch(self, fd: int, mask: int, callback: Callback) -> None:
        """Calls `callback` whenever `fd` is ready for `mask`, or broken. Watching again replaces both."""
        if fd in self._callbacks:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)
        self._callbacks[fd] = callback

    def forget(self, fd: int) -> None:
        """Stops watching `fd`; call it before the descriptor is closed."""
        if self._callbacks.pop(fd, None):
            self._epoll.unregister(fd)

    def set_timer(self, name: str, delay_s: float, callback: Callback) -> None:
        """Calls `callback` once after `delay_s`; replaces a timer of that name."""
        self._timers[name] = (time.monotonic() + delay_s, callback)

    def set_sliced_timer(self, name: str, delay_s: float, callback: Callback) -> None:
        """Does the same, but of a time in which this process was suspended, SLICE_S at most count."""
        left_s = delay_s - SLICE_S
        if left_s > 0:
            self.set_timer(name, SLICE_S, lambda: self.set_sliced_timer(name, left_s, callback))
        else:
            self.set_timer(name, delay_s, callback)

    def cancel_timer(self, name: str) -> None:
        self._timers.pop(name, None)

    def run_once(self) -> None:
        """Waits until something is ready or due, and runs its callbacks.

        What falls due during a callback waits until the descriptors have been looked at again: a message that came
        meanwhile may set another time.
        """
        timeout_s = -1.0
        if self._timers:
            timeout_s = max(0.0, min(due_s for due_s, _ in self._timers.values()) - time.monotonic())
        ready = self._epoll.poll(timeout_s, _EVENTS_MAX)
        now_s = time.monotonic()
        for fd, _ in ready:
            callback = self._callbacks.get(fd)
            if callback is not None:  # Forgotten by an earlier callback of this turn.
                callback()
        for name, (due_s, callback) in list(self._timers.items()):
            if due_s <= now_s and self._timers.get(name, (0, None))[1] is callback:
                del self._timers[name]
                callback()

    def close(self) -> None:
        """Closes the epoll descriptor. A fork does this first, so that it never changes its parent's list."""
        self._epoll.close()
        self._callbacks.clear()
        self._timers.clear()
