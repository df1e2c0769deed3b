"""How does a rank's client log, if the script's own filter or handler raises or hangs?

Scripts put filters on the root's handlers that call `torch.distributed.get_rank()`, for example, which raises while
there is no group. Python guards no filter. Such an error must not end the thread that aborts, or take a rank out of the
call; its line is lost. A handler may write to a disk that never answers. That must not keep the abort from the ranks
that another one has left in a collective, so one thread writes all lines, and each is waited for only briefly.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

LINE_TIMEOUT_S = 0.5
LINES_MAX = 1_000  # that wait for a handler; those beyond are lost

_Adapter = logging.LoggerAdapter[logging.Logger] if TYPE_CHECKING else logging.LoggerAdapter


class GuardedLog(_Adapter):
    """The logger of that name, whose methods raise nothing and do not hang."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:  # noqa: ANN401  # as logging has it
        """Returns once the handlers have the line, after LINE_TIMEOUT_S at the latest."""
        with contextlib.suppress(Exception):
            if not self.logger.isEnabledFor(level):
                return
            path, number, function, _ = self.logger.findCaller(stacklevel=2)
            error = sys.exc_info() if kwargs.get("exc_info") else None
            record = self.logger.makeRecord(self.logger.name, level, path, number, msg, args, error, function)
            context = contextvars.copy_context()  # a filter may look there for what it adds
            _writer.write(lambda: context.run(self.logger.handle, record))


class _Writer:
    """The thread that writes all lines, in order."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[tuple[Callable[[], object], threading.Event]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._late: threading.Event | None = None  # of a line that was not written in time

    def write(self, line: Callable[[], object]) -> None:
        """Blocks until the line is written, at most LINE_TIMEOUT_S, and not at all while an earlier one is late."""
        if not self._is_running():
            line()
            return
        if self._lines.qsize() >= LINES_MAX:
            return
        is_written = threading.Event()
        self._lines.put((line, is_written))
        if (self._late is None or self._late.is_set()) and not is_written.wait(LINE_TIMEOUT_S):
            self._late = is_written

    def _is_running(self) -> bool:
        """Returns whether the thread runs; starts it if it can: the first time, and after a fork."""
        if sys.is_finalizing():  # It would never have a turn.
            return False
        if self._thread is None or not self._thread.is_alive():
            self._lines, self._late = SimpleQueue(), None
            self._thread = threading.Thread(target=self._run, args=(self._lines,), name="holdfast-log", daemon=True)
            with contextlib.suppress(RuntimeError):  # there can be no more threads
                self._thread.start()
        return self._thread.is_alive()

    @staticmethod
    def _run(lines: SimpleQueue[tuple[Callable[[], object], threading.Event]]) -> None:
        while True:
            line, is_written = lines.get()
            with contextlib.suppress(Exception):
                line()
            is_written.set()
            del line, is_written  # An error in a record keeps the frames of what has failed.


_writer = _Writer()
