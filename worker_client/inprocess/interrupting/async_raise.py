"""How can integrators raise an exception in any Python thread, and what if it lands where it would be lost?

The Wrapper itself uses main_thread_interrupter.py, which is exact but works only for the main thread. This module uses
CPython's PyThreadState_SetAsyncExc: the exception comes before the thread's next bytecode, wherever that is.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Generator
from types import FrameType

LOOK_INTERVAL_S = 0.001  # polled, because nothing signals that a thread has left a function


def async_raise(tid: int, exc_type: type[BaseException], event: threading.Event | None = None) -> None:
    """Raises `exc_type` in the thread with that identifier; with an `event`, first blocks until that is set.

    A thread that waits inside C gets it on return. Raises TypeError if `exc_type` is not an exception class and
    ValueError if there is no such thread.
    """
    if not isinstance(exc_type, type) or not issubclass(exc_type, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]  # scripts are not checked
        raise TypeError(f"cannot raise {exc_type!r} in a thread: it is not a class of exceptions; give one")
    if event is not None:
        event.wait()
    if not _set(tid, exc_type):
        raise ValueError(
            f"cannot raise {exc_type.__name__} in thread {tid}: there is no such thread; give the ident of a live one"
        )


def delayed_async_raise(tid: int, exc_type: type[BaseException]) -> None:
    """Does the same from a separate thread, once this call has returned."""
    _Later(tid, exc_type, sys._getframe())  # pyright: ignore[reportPrivateUsage]


@contextlib.contextmanager
def reraise_if_unraisable(exc_type: type[BaseException]) -> Generator[None]:
    """Keeps exceptions of that class from being lost inside the block or the decorated function.

    If a destructor or a callback from C can't pass one on, it is raised again in the same thread once that has left
    there, at the end of the block at the latest. Wraps sys.unraisablehook, which affects the whole process.
    """
    previous = sys.unraisablehook
    lost: list[_Later] = []

    def hook(unraisable: sys.UnraisableHookArgs, /) -> None:
        kind = unraisable.exc_type
        if not issubclass(kind, exc_type):
            previous(unraisable)
            return
        del unraisable  # The frame lives on for a moment and would keep the dying object.
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
    """Raises in the thread once it has left `frame`, unless cancelled before."""

    def __init__(self, tid: int, exc_type: type[BaseException], frame: FrameType) -> None:
        self.tid = tid
        self.exc_type = exc_type
        self._is_cancelled = threading.Event()
        self._is_raised = False
        self._thread = threading.Thread(target=self._run, args=(frame,), name="holdfast-raise", daemon=True)
        self._thread.start()

    def cancel(self) -> bool:
        """Cancels the exception; returns whether it has not been raised and will not be."""
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
    """Sets the exception; returns whether the thread exists."""
    return ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(tid), ctypes.py_object(exc_type)) == 1
