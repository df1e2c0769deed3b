"""How is a call made outside the event loop if it may never return, such as one to a dead file server?

Each call has its own daemon thread: a stuck one delays neither the loop, nor another job's calls, nor the end of the
process (which would join threads of anyio's pool). A call that is late or cancelled is abandoned; if it returns after
all, or just then, `discard` gets its result in that thread.
"""

from __future__ import annotations

import asyncio  # anyio can be woken only from its own threads
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import anyio

from supervisor.edges.machine.own_process import threads

_T = TypeVar("_T")


class StuckError(TimeoutError):
    """Raised when a call was abandoned, or refused because too many are stuck already."""


class SideThreads:
    """Makes the calls of one job. Use it only from the event loop's thread."""

    def __init__(self, *, stuck_max: int) -> None:
        self._stuck_max = stuck_max
        self._lock = threading.Lock()
        self._stuck: Counter[str] = Counter()

    @property
    def stuck(self) -> int:
        """Returns the number of abandoned calls that have not returned yet."""
        return sum(self._stuck.values())

    async def call(
        self, work: Callable[[], _T], *, timeout_s: float, discard: Callable[[_T], object], key: str = ""
    ) -> _T:
        """Returns the result of `work`; raises its errors, StuckError after `timeout_s`, OSError without thread.

        With a `key`, a call is also refused while an abandoned one with the same key has not returned.
        """
        if self.stuck >= self._stuck_max:
            raise StuckError(f"{self.stuck} earlier calls are stuck")
        if key and self._stuck[key]:
            raise StuckError("an earlier call for it is stuck")
        call = _Call(work, discard, asyncio.get_running_loop(), partial(self._count, key, -1))
        threads.start(threading.Thread(target=call.run, name="side call", daemon=True))
        takes_result = False  # not if it is cancelled
        try:
            with anyio.move_on_after(timeout_s):
                await call.ended.wait()
            takes_result = True
        finally:
            if call.leave(takes_result=takes_result):
                self._count(key, 1)
        return call.result(timeout_s)

    def _count(self, key: str, change: int) -> None:
        """Counts a call that was abandoned, or, in its thread, one that returned after all."""
        with self._lock:
            self._stuck[key] += change
            if not self._stuck[key]:
                del self._stuck[key]


class _Call(Generic[_T]):
    def __init__(
        self,
        work: Callable[[], _T],
        discard: Callable[[_T], object],
        loop: asyncio.AbstractEventLoop,
        came_back: Callable[[], None],
    ) -> None:
        self._work = work
        self._discard = discard
        self._loop = loop
        self._came_back = came_back
        self._lock = threading.Lock()
        self._outcome: list[_T | BaseException] = []
        self._left = threading.Event()  # set once the caller waits no longer
        self._is_taken = False
        self.ended = anyio.Event()

    def run(self) -> None:
        """Makes the call. Runs in the thread."""
        try:
            outcome = self._work()
        except BaseException as error:  # noqa: BLE001 - it belongs to the waiting caller, in the other thread
            outcome = error
        with self._lock:
            abandoned = self._left.is_set()
            if not abandoned:
                self._outcome.append(outcome)
        if abandoned:
            self._came_back()
        else:
            self._wake()
            self._left.wait()
        if not self._is_taken and not isinstance(outcome, BaseException):
            self._discard(outcome)

    def leave(self, *, takes_result: bool) -> bool:
        """Stops waiting; returns whether the call has not returned by then."""
        with self._lock:
            self._is_taken = takes_result and bool(self._outcome)
            self._left.set()
            return not self._outcome

    def result(self, timeout_s: float) -> _T:
        if not self._outcome:
            raise StuckError(f"it has not ended within {timeout_s:g} s")
        outcome = self._outcome[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.ended.set)
        except RuntimeError:
            return  # The loop was closed in this moment.
