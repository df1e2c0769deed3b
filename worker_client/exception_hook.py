"""How does a failed rank exit at once (without atexit functions), even if its threads or its teardown would hang?"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from types import TracebackType

EXIT_CODE = 1


class ExceptionHook:
    """A hook in sys.excepthook from construction until `remove()`."""

    def __init__(self) -> None:
        self._stderr = sys.stderr
        self._is_removed = False
        self._previous = sys.excepthook
        sys.excepthook = self._hook = self._end

    def remove(self) -> None:
        """Restores the previous hook. If another hook has been installed over this one, this one has no more effect."""
        self._is_removed = True
        if sys.excepthook is self._hook:
            sys.excepthook = self._previous

    def _end(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if self._is_removed:
            self._previous(kind, error, traceback)
            return
        try:
            self._previous(kind, error, traceback)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                self._print_collected()
            for stream in (sys.stdout, sys.stderr, self._stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
        finally:
            os._exit(EXIT_CODE)

    def _print_collected(self) -> None:
        """Prints what a hook over this one has collected to print later, as that of init_process_group does."""
        if sys.stderr is not self._stderr and isinstance(sys.stderr, io.StringIO):
            self._stderr.write(sys.stderr.getvalue())
