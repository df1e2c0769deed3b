"""What does the program wait for while a person looks at a terminal where nothing happens yet?

It shows one line on stderr, with the seconds that have passed. The line comes late, so a quick start does not show it,
and it is erased before any other output. If stderr is not a terminal, there is no line.
"""

from __future__ import annotations

import contextlib
import threading

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process import standard_streams, threads

FIRST_S = 0.7
TICK_S = 1.0
COLUMNS_MAX = 79


class WaitNotice:
    """Shows a line from `show` to `close`. For any thread; never blocks for long."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._lock = threading.Lock()
        self._text = ""
        self._since_s = 0.0
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, text: str) -> None:
        """Sets what the program waits for, such as "loading torch"; "": nothing."""
        with self._lock:
            if text == self._text or self._is_closed.is_set() or not standard_streams.stderr_is_terminal():
                return
            standard_streams.erase_line()
            self._text, self._since_s = text, self._clock.now_s()
            if text and self._thread is None:
                self._thread = threading.Thread(target=self._draw_again, name="waiting-line", daemon=True)
                with contextlib.suppress(OSError):  # Without a thread there is no line.
                    threads.start(self._thread)

    def close(self) -> None:
        self.show("")
        self._is_closed.set()

    def _draw_again(self) -> None:
        while not self._is_closed.wait(TICK_S if standard_streams.has_line() else FIRST_S):
            with self._lock:
                passed_s = self._clock.now_s() - self._since_s
                if self._text and not self._is_closed.is_set() and passed_s >= FIRST_S:
                    line = f"holdfast: {self._text} … {passed_s:.0f} s"
                    standard_streams.draw_line(line[:COLUMNS_MAX])
