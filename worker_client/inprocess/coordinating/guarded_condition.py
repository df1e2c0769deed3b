"""How does a wait of the main thread go on if a signal handler of the script raises in it?

Python runs such handlers on the main thread, wherever that is. For example, torch's handler of SIGCHLD raises
RuntimeError if a worker process of a DataLoader has died. In the function, that is a fault of the rank like any other;
in a wait between two iterations, it would take a healthy rank out of the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from worker_client.guarded_log import GuardedLog

log = GuardedLog("holdfast.inprocess")


class GuardedCondition(threading.Condition):
    """A condition that the main thread waits for. Its lock is re-entrant: unlike a plain one, it tells whose it is."""

    def __init__(self) -> None:
        super().__init__(threading.RLock())

    def is_held_here(self) -> bool:
        """Returns whether the calling thread has the lock, as under a signal handler that has interrupted a change."""
        try:
            self.notify(0)
        except RuntimeError:
            return False
        return True

    def wait_until(self, is_over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Blocks until `is_over()`, at most `timeout_s`, and returns whether it is. Logs an Exception and waits on.

        Only a handler can raise one here. KeyboardInterrupt, SystemExit and the like do end the wait.
        """
        end_s = None if timeout_s is None else monotonic() + timeout_s
        while True:
            try:
                if not self.is_held_here():  # the handler raised just as the wait released it
                    self.acquire()
                return self.wait_for(is_over, None if end_s is None else max(0.0, end_s - monotonic()))
            except Exception:  # whatever it is, this rank is healthy and the others wait for it
                log.warning("a signal handler raised while this rank waited for the others; it waits on", exc_info=True)
