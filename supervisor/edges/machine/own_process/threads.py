"""How is a thread started where the node may have none left?

A worker that has filled the limit on processes (`ulimit -u`) must cost us no more than what the thread was for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio import to_thread

from supervisor.edges.machine.own_process.kernel_error_remedies import NoThreadError

_T = TypeVar("_T")
_ARENA_BYTES = 4096


def start(thread: threading.Thread) -> None:
    """Starts the thread. Raises NoThreadError if there is none left."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise NoThreadError(error) from error


def check_room(count: int) -> None:
    """Raises NoThreadError unless that many threads can run at once.

    For libraries that end the process if a thread of theirs can't be started.
    """
    may_end = threading.Event()
    begun: list[threading.Thread] = []

    def take_room() -> None:
        bytearray(_ARENA_BYTES)  # The first allocation of a thread takes addresses for all later ones.
        may_end.wait()

    try:
        for _ in range(count):
            thread = threading.Thread(target=take_room, daemon=True)
            start(thread)
            begun.append(thread)
    finally:
        may_end.set()
        for thread in begun:
            thread.join()


async def in_thread(
    work: Callable[[], _T], *, limiter: anyio.CapacityLimiter | None = None, abandon_on_cancel: bool = False
) -> _T:
    """Returns the result of `work`, done in a thread. Raises NoThreadError if there is none left."""
    has_begun = False

    def begin() -> _T:
        nonlocal has_begun
        has_begun = True
        return work()

    try:
        return await to_thread.run_sync(begin, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
    except RuntimeError as error:
        if has_begun:
            raise
        raise NoThreadError(error) from error


async def in_thread_if_any(work: Callable[[], object]) -> None:
    """Does the work in a thread; without one, leaves it undone."""
    with contextlib.suppress(OSError):
        await in_thread(work, abandon_on_cancel=True)


async def in_thread_or_here(work: Callable[[], _T]) -> _T:
    """Returns the result of `work`, which takes a moment at most: without a thread, it is done in the event loop's."""
    try:
        return await in_thread(work)
    except NoThreadError:
        return work()
