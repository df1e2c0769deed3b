"""What is awaited, while a person looks at a terminal on which nothing happens yet?

One line on stderr, with the seconds that have passed. It comes late, so that a quick start shows nothing of it, and it
goes before anything else is written. Where stderr is no terminal, there is none.
"""

from __future__ import annotations

import sys
import threading

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.own_process import standard_streams

FIRST_S = 0.7
TICK_S = 1.0
COLUMNS_MAX = 79
CLEAR = "\r\x1b[K"


class WaitingLine:
    """Shows nothing before `show`, and nothing any more after `close`. For any thread; never blocks for long."""

    def __init__(self) -> None:
        self._clock = Clock()
        self._lock = threading.Lock()
        self._text = ""
        self._since_s = 0.0
        self._is_drawn = False
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, text: str) -> None:
        """What is awaited from now on, such as "loading torch"; "": nothing."""
        with self._lock:
            if text == self._text or self._is_closed.is_set() or not standard_streams.stderr_is_terminal():
                return
            self._clear()
            self._text, self._since_s = text, self._clock.now_s()
            if text and self._thread is None:
                standard_streams.before_writing = self.clear
                self._thread = threading.Thread(target=self._draw_again, name="waiting-line", daemon=True)
                self._thread.start()

    def clear(self) -> None:
        """Makes room for another line. This one comes again at its next tick."""
        with self._lock:
            self._clear()

    def close(self) -> None:
        self.show("")
        self._is_closed.set()
        if standard_streams.before_writing == self.clear:
            standard_streams.before_writing = None

    def _draw_again(self) -> None:
        while not self._is_closed.wait(TICK_S if self._is_drawn else FIRST_S):
            with self._lock:
                passed_s = self._clock.now_s() - self._since_s
                if self._text and not self._is_closed.is_set() and passed_s >= FIRST_S:
                    line = f"holdfast: {self._text} … {passed_s:.0f} s"
                    self._is_drawn = _write(CLEAR + line[:COLUMNS_MAX])

    def _clear(self) -> None:
        if self._is_drawn:
            _write(CLEAR)
            self._is_drawn = False


def _write(text: str) -> bool:
    return standard_streams.write_raw(sys.stderr, text, wait_s=0.0)
