"""How does one thread write what others have queued, until it is closed, so that nobody else waits for a disk?

The thread is a daemon: a disk that does not answer keeps no process from its end.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from supervisor.edges.machine.own_process import threads

_Batch = TypeVar("_Batch")
_Item = TypeVar("_Item")


def _nothing() -> None:
    """Does nothing."""


class WriterThread(Generic[_Batch]):
    """Calls `write` with what `take` returns, one after the other, until that is None; then calls `end`.

    All three run in the thread. `take` waits until there is something to write.
    """

    def __init__(
        self,
        name: str,
        *,
        take: Callable[[], _Batch | None],
        write: Callable[[_Batch], None],
        end: Callable[[], None] = _nothing,
    ) -> None:
        self._take, self._write, self._end = take, write, end
        self._thread = threading.Thread(target=self._write_until_closed, name=name, daemon=True)

    @property
    def is_started(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        """Starts it, unless that was done. Raises OSError if there is no thread left; another attempt may succeed."""
        if not self.is_started:
            threads.start(self._thread)

    def join(self, timeout_s: float) -> bool:
        """Waits for its end. Returns False if it never started, or still writes."""
        if not self.is_started:
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _write_until_closed(self) -> None:
        try:
            while (batch := self._take()) is not None:
                self._write(batch)
        finally:
            self._end()


class QueueWriter(Generic[_Item]):
    """Writes the items that are put, in order, up to `together_max` at once. The first item starts the thread.

    After a pause, the first item waits up to `linger_s` for others: each wake of the thread takes time from who puts.
    """

    def __init__(
        self,
        name: str,
        *,
        write: Callable[[list[_Item]], None],
        waiting_max: int,
        together_max: int = 1,
        linger_s: float = 0.0,
        end: Callable[[], None] = _nothing,
    ) -> None:
        self._waiting: queue.Queue[_Item | None] = queue.Queue(waiting_max)
        self._together_max = together_max
        self._linger_s = linger_s
        self._closing = threading.Event()
        self._is_closed = False  # used in the thread
        self._thread = WriterThread(name, take=self._take, write=write, end=end)

    @property
    def is_empty(self) -> bool:
        return self._waiting.empty()

    def start(self) -> None:
        """Starts the thread now. Raises OSError if there is none left."""
        self._thread.start()

    def put(self, item: _Item) -> bool:
        """Queues an item. Never blocks. Returns False if too many wait. Raises OSError if there is no thread left."""
        self._thread.start()
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            return False
        return True

    def close(self, timeout_s: float) -> None:
        """Writes what waits; gives up after so long if that hangs."""
        self._closing.set()
        if self._thread.is_started:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)

    def _take(self) -> list[_Item] | None:
        taken: list[_Item] = []
        while not self._is_closed and len(taken) < self._together_max and not (taken and self._waiting.empty()):
            lingers = self._linger_s > 0 and self._waiting.empty()
            item = self._waiting.get()
            if item is None:
                self._is_closed = True
            else:
                taken.append(item)
            if lingers:
                self._closing.wait(self._linger_s)
        return taken or None
