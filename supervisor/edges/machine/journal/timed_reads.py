"""How is a history read that may be on a disk which does not answer?

Each read has a daemon thread of its own, which is abandoned at its deadline: it keeps no process from its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from supervisor.edges.machine.own_process import threads
from supervisor.errors import ExhaustedError

READ_S = 10.0  # longer than a reader waits for the commit of another supervisor
STUCK_MAX = 4

T = TypeVar("T")


class SilentDiskError(ExhaustedError):
    """Raised if a read has not ended in time, or if too many earlier ones have not ended at all."""


class TimedReads:
    """The reads of one process; from any thread."""

    def __init__(self, *, stuck_max: int = STUCK_MAX) -> None:
        self._stuck_max = stuck_max
        self._lock = threading.Lock()
        self._late: list[Future[Any]] = []  # that have not ended in time

    def read(self, work: Callable[[], T], *, place: object, within_s: float | None = None) -> T:
        """Returns the result of `work`; raises its errors. Raises SilentDiskError, which names `place`.

        If no thread is left, the caller's own one does it, without a deadline. `within_s` None: READ_S.
        """
        with self._lock:
            self._late = [each for each in self._late if not each.done()]
            if len(self._late) >= self._stuck_max:
                raise _silent(place)
        ended: Future[T] = Future()

        def run() -> None:
            try:
                ended.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller, in the other thread
                ended.set_exception(error)

        try:
            threads.start(threading.Thread(target=run, name="history", daemon=True))
        except OSError:
            return work()
        if wait([ended], READ_S if within_s is None else within_s).not_done:
            with self._lock:
                self._late.append(ended)
            raise _silent(place)
        return ended.result()


def _silent(place: object) -> SilentDiskError:
    return SilentDiskError(f"cannot read the history: {place} does not answer; check its disk or its file server")
