"""What replaces a private supervisor that has died in the middle of a call? A successor that one of the ranks starts.

Training continues meanwhile: all of this happens on the channel's thread, between two attempts to connect. The
successor knows nothing; each rank reports its state to it (coordination.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

from worker_client.endpoint import Endpoint
from worker_client.guarded_log import GuardedLog
from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.private_supervisor import supervisor_lookup
from worker_client.inprocess.private_supervisor.job_folder import find

PAUSE_MIN_S = 1.0  # between two starts by this rank
PAUSE_MAX_S = 60.0
CALM_S = 300.0  # starts this far apart do not point to a supervisor that always dies

log = GuardedLog("holdfast.inprocess")


class PrivateSuccessor:
    """Replaces one call's supervisor if it is dead; one that is only stopped is not replaced."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """`environment` is that of the first start; the function may have changed the process's own."""
        self._folder = folder
        self._environment = dict(environment)
        self._pause_s = PAUSE_MIN_S
        self._not_before_s = 0.0
        self._lock = threading.Lock()  # guards the two below
        self._cancel = -1  # while one is being started
        self._is_closed = False

    # --- called by the channel's thread ---

    def find(self, is_wanted: Callable[[], bool]) -> Endpoint | None:
        """Returns where this job's supervisor answers now; None: nowhere yet. Never raises.

        If there is none, starts one while `is_wanted()`.
        """
        found = None
        try:
            found = find(self._folder, self._environment)
            if found is None and monotonic() >= self._not_before_s and is_wanted():
                found = self._start()
        except (InternalError, OSError) as error:
            log.warning("%s; training goes on, trying again in the background", error)
        return found

    def _start(self) -> Endpoint | None:
        with self._lock:
            if self._is_closed:
                return None
            self._cancel = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            found = supervisor_lookup.start_another(self._folder, self._environment, cancel=self._cancel)
        except (InternalError, OSError):
            self._pause()
            raise
        finally:
            with self._lock:
                descriptor, self._cancel = self._cancel, -1
            os.close(descriptor)
        if found is None:
            return None
        if found.is_ours:
            self._pause()
            log.warning("the private supervisor had died; another one serves this job now")
        return found.endpoint

    def _pause(self) -> None:
        """Delays the next start; longer after several starts in a short time."""
        now_s = monotonic()
        if now_s - self._not_before_s > CALM_S:
            self._pause_s = PAUSE_MIN_S
        self._not_before_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    # --- called by other threads ---

    def close(self) -> None:
        """Starts nothing more, and ends what is being started. Idempotent; never blocks."""
        with self._lock:
            self._is_closed = True
            if self._cancel >= 0:
                with contextlib.suppress(OSError):
                    os.eventfd_write(self._cancel, 1)
