"""How can integrators raise an exception in any Python thread, and what if it lands where it would be lost?

The Wrapper's own way is main_thread_interrupter.py: it is exact, but for the main thread alone. This one is CPython's
PyThreadState_SetAsyncExc: the exception comes before the thread's next bytecode, wherever that is.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Generator
from types import FrameType

LOOK_INTERVAL_S = 0.001  # a thread that leaves a function wakes nobody


def async_raise(tid: int, exc_type: type[BaseException], event: threading.Event | None = None) -> None:
    """Raises `exc_type` in the thread with that identifier; with an `event`, blocks until that is set first.

    A thread that waits inside C gets it once it is back. Raises TypeError for what is no class of exceptions and
    ValueError where there is no such thread.
    """
    if not isinstance(exc_type, type) or not issubclass(exc_type, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]  # scripts are not checked
        raise TypeError(f"cannot raise {exc_type!r} in a thread: it has to be a class of exceptions")
    if event is not None:
        event.wait()
    if not _set(tid, exc_type):
        raise ValueError(f"cannot raise {exc_type.__name__} in thread {tid}: there is no such thread")


def delayed_async_raise(tid: int, exc_type: type[BaseException]) -> None:
    """Does the same from a thread of its own, once this call has returned."""
    _Later(tid, exc_type, sys._getframe())  # pyright: ignore[reportPrivateUsage]


@contextlib.contextmanager
def reraise_if_unraisable(exc_type: type[BaseException]) -> Generator[None]:
    """Inside the block or the decorated function, no exception of that class is lost.

    One that a destructor or a callback from C could not pass on is raised again in the same thread, as soon as that is
    out of there; at the end of the block at the latest. Wraps sys.unraisablehook, which is the whole process's.
    """
    previous = sys.unraisablehook
    lost: list[_Later] = []

    def hook(unraisable: sys.UnraisableHookArgs, /) -> None:
        kind = unraisable.exc_type
        if not issubclass(kind, exc_type):
            previous(unraisable)
            return
        del unraisable  # The frame is kept for a moment, and would keep the dying object.
        frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
        lost.append(_Later(threading.get_ident(), kind, frame))

    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = previous
        due = [each.exc_type for each in lost if each.cancel() and each.tid == threading.get_ident()]
    if due:
        raise due[0]


class _Later:
    """Raises in the thread once that has left `frame`, unless it is cancelled before."""

    def __init__(self, tid: int, exc_type: type[BaseException], frame: FrameType) -> None:
        self.tid = tid
        self.exc_type = exc_type
        self._is_cancelled = threading.Event()
        self._is_raised = False
        self._thread = threading.Thread(target=self._run, args=(frame,), name="holdfast-raise", daemon=True)
        self._thread.start()

    def cancel(self) -> bool:
        """Cancels the exception; returns whether it was not raised and will not be."""
        self._is_cancelled.set()
        self._thread.join()
        return not self._is_raised

    def _run(self, frame: FrameType) -> None:
        while not self._is_cancelled.wait(LOOK_INTERVAL_S):
            if not _is_inside(self.tid, frame):
                self._is_raised = _set(self.tid, self.exc_type)
                return


def _is_inside(tid: int, frame: FrameType) -> bool:
    each = sys._current_frames().get(tid)  # pyright: ignore[reportPrivateUsage]
    while each is not None and each is not frame:
        each = each.f_back
    return each is not None


def _set(tid: int, exc_type: type[BaseException]) -> bool:
    """Sets the exception; returns whether there is such a thread."""
    return ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(tid), ctypes.py_object(exc_type)) == 1
