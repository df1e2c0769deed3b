"""How does a rank's client log, if the script's own filter or handler raises or hangs?

Scripts put filters on the root's handlers that call `torch.distributed.get_rank()`, for example, which raises while
there is no group. Python guards no filter. Such an error must not end the thread that aborts, or take a rank out of the
call; its line is lost. A handler may write to a disk that never answers. That must not keep the abort from the ranks
that another one has left in a collective, so each line is written by its own thread, which is waited for only briefly.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

LINE_TIMEOUT_S = 0.5

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
            if sys.is_finalizing():  # a thread would never start, and be waited for
                self._handle(record)
                return
            line = threading.Thread(target=self._handle, args=(record,), name="holdfast-log", daemon=True)
            try:
                line.start()
            except RuntimeError:  # there can be no more threads
                self._handle(record)
            else:
                line.join(LINE_TIMEOUT_S)

    def _handle(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            self.logger.handle(record)
