"""How does a restart run calls into foreign libraries that may hang, and continue without them?"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from time import monotonic

from worker_client.guarded_log import GuardedLog

log = GuardedLog("holdfast")

SLICE_S = 1.0  # a suspension of this process counts as this much at most


class BoundedThread:
    """A daemon thread for one call. An exception is kept as `error`; a call that hangs blocks nothing else.

    The error may be that no thread can be started.
    """

    def __init__(self, what: str, run: Callable[[], object]) -> None:
        self.what = what
        self.error: BaseException | None = None
        self.has_started = False
        self._run = run
        self._thread = threading.Thread(target=self._run_and_keep, name=f"holdfast-{what}"[:60], daemon=True)

    def start(self) -> None:
        try:
            self._thread.start()
            self.has_started = True
        except RuntimeError as error:
            self.error = error

    def join(self, timeout_s: float) -> bool:
        """Blocks until the call has ended, at most `timeout_s`; returns whether it has."""
        return self.join_within(timeout_s) is not None

    def join_within(self, timeout_s: float) -> float | None:
        """Blocks until the call has ended; returns what is left of `timeout_s` then, None if it has not in that time.

        The call may be suspended together with this process, so that time counts little.
        """
        if self._thread.ident is None:
            return timeout_s
        left_s = max(timeout_s, 0.0)
        while True:
            since_s = monotonic()
            self._thread.join(min(left_s, SLICE_S))
            left_s -= min(monotonic() - since_s, SLICE_S)
            if not self._thread.is_alive():
                return max(left_s, 0.0)
            if left_s <= 0.0:
                return None

    def end_later(self) -> None:
        """Raises SystemExit in the call once the C function that it hangs in returns, before its next step."""
        ident = self._thread.ident
        if ident is not None and self._thread.is_alive():  # later, another thread may have the number
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))

    def _run_and_keep(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001  # the thread that waits for this one decides
            self.error = error


def join_all(threads: Sequence[BoundedThread], timeout_s: float) -> bool:
    """Blocks until all have ended, at most `timeout_s`; returns whether they have. Logs each that failed or hangs."""
    left_s: float | None = timeout_s
    have_ended = True
    for thread in threads:
        left_s = thread.join_within(left_s or 0.0)
        if left_s is None:
            have_ended = False
            log.warning("cannot %s within %.3g s; the restart goes on without it", thread.what, timeout_s)
        elif thread.error is not None:
            log.warning("cannot %s: %s", thread.what, thread.error)
    return have_ended
