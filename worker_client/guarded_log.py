"""How does a rank's client log, if the script's own filter or handler raises or hangs?

Scripts put filters on the root's handlers that call `torch.distributed.get_rank()`, for example, which raises while
there is no group. Python guards no filter. Such an error must not end the thread that aborts, or take a rank out of the
call; its line is lost. A handler may write to a disk that never answers. That must not keep the abort from the ranks
that another one has left in a collective, so a thread writes the lines, and each is waited for only briefly. Nor may it
keep the process from its end: logging waits there for the lock of each handler, and that thread has it.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

LINE_TIMEOUT_S = 0.5
END_TIMEOUT_S = 5.0  # for all handlers: one that is only slow has lines of the script to write when the process ends
LINES_MAX = 1_000  # that wait for a handler; those beyond are lost

_Adapter = logging.LoggerAdapter[logging.Logger] if TYPE_CHECKING else logging.LoggerAdapter


class GuardedLog(_Adapter):
    """The logger of that name, whose methods raise nothing and do not hang."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})
        _loggers.add(self.logger)

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


class LineWriter:
    """Writes lines in order, in a thread that ends once there is none."""

    def __init__(self) -> None:
        self._lines = deque[Callable[[], object]]()
        self._thread: threading.Thread | None = None
        self._is_running = False  # it will look for another line before it ends
        self._is_late = False  # a line was not written in time
        _live.add(self)

    @property
    def is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def write(self, line: Callable[[], object]) -> None:
        """Blocks until the line is written, at most LINE_TIMEOUT_S, and not at all while an earlier one is late."""
        if len(self._lines) >= LINES_MAX:
            return
        self._lines.append(line)
        thread = self._thread
        if thread is None or not self._is_running or not thread.is_alive():
            self._is_running, self._is_late = True, False
            self._thread = thread = threading.Thread(target=self._write_all, name="holdfast-log", daemon=True)
            try:
                if sys.is_finalizing():  # It would never have a turn.
                    raise RuntimeError
                thread.start()
            except RuntimeError:  # or there can be no more threads
                self._write_all()
                return
        if not self._is_late:
            thread.join(LINE_TIMEOUT_S)
            self._is_late = thread.is_alive()

    def finishes(self, timeout_s: float) -> bool:
        """Waits for the lines, and gives up those that had no turn. Returns whether no line is being written."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._lines.clear()
        return not self.is_writing

    def _write_all(self) -> None:
        while True:
            try:
                line = self._lines.popleft()
            except IndexError:
                self._is_running = False
                if not self._lines:
                    return
                self._is_running = True  # One came just now; its caller may have seen either.
                continue
            with contextlib.suppress(Exception):
                line()
            del line  # An error in a record keeps the frames of what has failed.


_live: weakref.WeakSet[LineWriter] = weakref.WeakSet()
_loggers = set[logging.Logger]()
_writer = LineWriter()


def _start_over() -> None:
    """Forgets the threads and their lines, which are the parent's."""
    for each in list(_live):
        each.__init__()


def _leave_hung_handlers() -> None:
    """Has logging's own end, which comes next, leave out each handler in which a line of ours hangs."""
    until_s = time.monotonic() + END_TIMEOUT_S
    if not _writer.is_writing or _writer.finishes(END_TIMEOUT_S / 2):
        return
    handlers = _handlers()
    hung = {each for each in handlers if _is_hung(each, until_s)}
    streams = [stream for each in hung if (stream := getattr(each, "stream", None)) is not None]
    for handler in handlers:
        if handler in hung or getattr(handler, "stream", None) in streams:
            for name in ("acquire", "handle", "emit", "flush", "close", "release"):
                setattr(handler, name, _do_nothing)
    for names in (("stdout", "__stdout__"), ("stderr", "__stderr__")):
        if any(getattr(sys, name) in streams for name in names):
            for name in names:  # Python would flush it at its end, and abort because that thread has its lock.
                setattr(sys, name, None)


def _handlers() -> set[logging.Handler]:
    """Returns those that logging closes at its end. Without its private list, those that our lines reach."""
    listed = [each() for each in list(getattr(logging, "_handlerList", ()))]
    found = {each for each in (*listed, logging.lastResort) if each is not None}
    for each in _loggers:
        logger: logging.Logger | None = each
        while logger is not None:
            found.update(logger.handlers)
            logger = logger.parent
    return found


def _do_nothing(*_: object) -> None:
    return


def _is_hung(handler: logging.Handler, until_s: float) -> bool:
    lock = handler.lock
    if lock is None:
        return False
    if not lock.acquire(timeout=max(0.0, until_s - time.monotonic())):
        return True
    lock.release()
    return False


os.register_at_fork(after_in_child=_start_over)
atexit.register(_leave_hung_handlers)
