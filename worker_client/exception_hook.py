"""How does a failed rank exit at once (without atexit functions), even if its threads or its teardown would hang?"""

from __future__ import annotations

import contextlib
import os
import sys
from types import TracebackType

EXIT_CODE = 1


class ExceptionHook:
    """A hook in sys.excepthook from construction until `remove()`."""

    def __init__(self) -> None:
        self._previous = sys.excepthook
        sys.excepthook = self._hook = self._end

    def remove(self) -> None:
        """Restores the previous hook, unless another hook has been installed over this one."""
        if sys.excepthook is self._hook:
            sys.excepthook = self._previous

    def _end(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        try:
            self._previous(kind, error, traceback)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
        finally:
            os._exit(EXIT_CODE)
