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

_T = TypeVar("_T")


def start(thread: threading.Thread) -> None:
    """Starts the thread. Raises OSError if there is none left."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise _no_thread(error) from error


def _no_thread(error: BaseException) -> OSError:
    return OSError(f"no thread can be started ({error}); raise the limit on processes (ulimit -u)")


async def in_thread(
    work: Callable[[], _T], *, limiter: anyio.CapacityLimiter | None = None, abandon_on_cancel: bool = False
) -> _T:
    """Returns the result of `work`, done in a thread. Raises OSError if there is none left."""
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
        raise _no_thread(error) from error


async def in_thread_if_any(work: Callable[[], object]) -> None:
    """Does the work in a thread; without one, leaves it undone."""
    with contextlib.suppress(OSError):
        await in_thread(work, abandon_on_cancel=True)
