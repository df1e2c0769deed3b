"""What may the supervisor expect of the main thread now: progress, an unwinding, or nothing?

The answer is in the rank's page (holdfast_wire.page_layout), which the supervisor reads when a limit falls due.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from time import monotonic_ns

from holdfast_wire import page_layout as layout

from worker_client.progress_page_writer import ProgressPage


class MainThreadWatch:
    """The page's words about one call. They outlive a connection and move to the next one's page. Never blocks."""

    __slots__ = ("__weakref__", "_changed", "_disabled", "_is_unwinding", "_wanted", "words")

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each change of what is expected."""
        self.words = ProgressPage.private().words
        self._changed = changed
        self._wanted = layout.WATCH_OFF
        self._is_unwinding = False
        self._disabled = 0
        _live.add(self)

    def adopt(self, page: ProgressPage) -> None:
        """Continues in the page of a new connection."""
        old, words, now_ns = self.words, page.words, monotonic_ns()
        words[layout.WORD_TICK_INTERVAL_NS] = old[layout.WORD_TICK_INTERVAL_NS]
        words[layout.WORD_TICK_NS] = now_ns
        words[layout.WORD_WATCH_SINCE_NS] = now_ns
        self.words = words
        words[layout.WORD_WATCH] = self._expected()

    def leave(self) -> None:
        """Expects nothing more and drops the page."""
        self.end()
        self.detach()

    def detach(self) -> None:
        """Drops the page, which in a forked child is the parent's."""
        self.words = ProgressPage.private().words

    # --- called by the main thread ---

    def on(self) -> None:
        """Expects progress of the main thread from now on. Earlier silence does not count; protection is on."""
        self._is_unwinding = False
        self._disabled = 0
        self._set(layout.WATCH_ON)

    def off(self) -> None:
        """Expects nothing: the main thread waits for others."""
        self._set(layout.WATCH_OFF)

    def end(self) -> None:
        """Expects nothing more, not even an unwinding."""
        self._is_unwinding = False
        self._set(layout.WATCH_OFF)

    def disable(self) -> None:
        """Suspends all limits until `enable()` is called as often as this, or until the iteration ends."""
        self._disabled += 1
        self._set(self._wanted)

    def enable(self) -> None:
        self._disabled = max(self._disabled - 1, 0)
        self._set(self._wanted)

    # --- called by the monitor thread, and by the main thread that waits for it ---

    def unwind(self) -> None:
        """Gives the main thread the hard timeout, from now on, to come back, whatever else it reports."""
        self._is_unwinding = True
        self._write(layout.WATCH_UNWINDING)

    # --- called by the watchdog's thread ---

    def ticks_every(self, interval_ns: int) -> None:
        self.words[layout.WORD_TICK_INTERVAL_NS] = interval_ns

    def tick(self, now_ns: int, pending_since_ns: int) -> None:
        words = self.words
        words[layout.WORD_PENDING_SINCE_NS] = pending_since_ns
        words[layout.WORD_TICK_NS] = now_ns

    def _set(self, wanted: int) -> None:
        self._wanted = wanted
        self._write(self._expected())
        if self._is_unwinding:
            # The order came while we wrote, or the function's own cleanup reports: the unwinding stands.
            self._write(layout.WATCH_UNWINDING)

    def _expected(self) -> int:
        if self._is_unwinding:
            return layout.WATCH_UNWINDING
        return layout.WATCH_OFF if self._disabled else self._wanted

    def _write(self, watch: int) -> None:
        words = self.words
        if words[layout.WORD_WATCH] != layout.WATCH_UNWINDING or watch != layout.WATCH_UNWINDING:
            words[layout.WORD_WATCH_SINCE_NS] = monotonic_ns()  # the time to unwind starts once
        words[layout.WORD_WATCH] = watch
        self._changed()


_live: weakref.WeakSet[MainThreadWatch] = weakref.WeakSet()


def _detach_all() -> None:
    for watch in list(_live):
        watch.detach()


os.register_at_fork(after_in_child=_detach_all)
