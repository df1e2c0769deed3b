"""How is an exception raised in the main thread, wherever that is, but only while it is allowed?

A Python signal handler raises it. Python runs handlers on the main thread, between two bytecodes or in a system call
that a signal interrupts. So the interrupted thread itself decides whether to raise, and nothing is raised too late.
`request()` makes Python run the handler without any signal; `interrupt_system_call()` sends a real one.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from worker_client.own_stacks import is_handled

if TYPE_CHECKING:
    from collections.abc import Iterator

_P = ParamSpec("_P")
_T = TypeVar("_T")

SIGNALS_LEFT_FREE = 2  # the highest numbers, which other code takes first
FRAMES_SHOWN_MAX = 5
IMPORT_FILE = "<frozen importlib._bootstrap>"
IMPORT_S = 10.0  # of an import that hangs, hard_timeout should not have to end the process
CONTEXTS_MAX = 1000  # how far a chain of exceptions is followed


class RankShouldRestart(BaseException):
    """Raised in the main thread, inside the wrapped function, to begin the restart. Do not swallow it."""


def is_restart(group: BaseExceptionGroup[BaseException]) -> bool:
    """Returns whether the group has RankShouldRestart, and otherwise only what a function may raise to be repeated."""
    left, found = list(group.exceptions), False
    while left:
        match left.pop():
            case BaseExceptionGroup() as inner:
                left += inner.exceptions
            case RankShouldRestart():
                found = True
            case Exception():
                pass
            case _:
                return False
    return found


class MainThreadInterrupter:
    """Owns one real-time signal from construction to `remove()`. Only `request` and `interrupt_system_call` may be
    called off the main thread.
    """

    def __init__(self, patience_s: float) -> None:
        """Leaves code that cleans up after the exception alone for `patience_s`, and an import for IMPORT_S at most.

        Raises ValueError off the main thread and RuntimeError if no signal is free.
        """
        self._patience_s = patience_s
        self._message: str | None = None  # that of the exception that is due
        self._armed_s = 0.0
        self._is_open = False  # the main thread is where it may be interrupted
        self._raised: weakref.ref[RankShouldRestart] | None = None
        self._raised_s = 0.0
        self._places: list[str] = []
        self._pid = os.getpid()
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "cannot interrupt the wrapped function: this is not the main thread; call it on the main thread"
            )
        self._thread_id = threading.get_ident()
        self._signal = _free_signal()
        self._previous_hook = sys.unraisablehook
        self._hook = self._unraisable  # bound once, so that it can be recognised
        self._previous_handler = signal.signal(self._signal, self._handle)
        sys.unraisablehook = self._hook

    def remove(self) -> None:
        """Releases the signal. Idempotent. Call it when no thread can call `interrupt_system_call` any more."""
        if self._signal == 0:
            return
        self._is_open = False
        signal.signal(self._signal, self._previous_handler)
        self._signal = 0
        if sys.unraisablehook is self._hook:
            sys.unraisablehook = self._previous_hook

    # --- called by the main thread ---

    def run(self, fn: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Calls `fn`. Only during this call can the exception be raised."""
        try:
            self._is_open = True
            if self._message is not None:
                raise RankShouldRestart(self._message)
            return fn(*args, **kwargs)
        finally:
            self._is_open = False

    def disarm(self) -> None:
        """Cancels the exception."""
        self._message = None
        self._raised = None

    # --- called by the monitor thread ---

    def arm(self, message: str) -> None:
        self._armed_s = monotonic()
        self._message = message

    def request(self) -> None:
        """Makes the main thread raise before its next bytecode, if an exception is due and allowed there."""
        _thread.interrupt_main(cast("signal.Signals", self._signal))

    def interrupt_system_call(self) -> None:
        """Does the same if the main thread is waiting in the kernel."""
        signal.pthread_kill(self._thread_id, self._signal)

    def places(self) -> list[str]:
        """Returns where the main thread was at each raise since the last call."""
        places = self._places
        self._places = []
        return places

    # --- run by Python on the main thread ---

    def _handle(self, _signal: int, frame: FrameType | None) -> None:
        if self._message is None or not self._is_open or os.getpid() != self._pid:
            return
        now_s = monotonic()
        if self._is_under_way() and now_s - self._raised_s < self._patience_s:
            return
        if now_s - self._armed_s < min(self._patience_s, IMPORT_S) and _is_importing(frame, self.run.__code__):
            return
        self._places.append(_place(frame, self.run.__code__))
        del frame  # The exception keeps this frame alive, and through it all of the function's frames.
        error = RankShouldRestart(self._message)
        self._raised, self._raised_s = weakref.ref(error), now_s
        raise error

    def _is_under_way(self) -> bool:
        """Returns whether the last exception still propagates, so cleanup code runs. If not, it was swallowed."""
        raised = self._raised() if self._raised is not None else None
        if raised is None:
            return False
        return any(error is raised for error in _contexts(sys.exception()))

    def _unraisable(self, unraisable: sys.UnraisableHookArgs, /) -> None:
        """Notes that a destructor or a callback from C lost the exception. The next request raises it again."""
        if not issubclass(unraisable.exc_type, RankShouldRestart):
            self._previous_hook(unraisable)


def _contexts(error: BaseException | None) -> Iterator[BaseException]:
    """Yields the exception being handled, and those whose handling raised it."""
    for _ in range(CONTEXTS_MAX):
        if error is None:
            return
        yield error
        error = error.__context__


def _free_signal() -> int:
    for number in range(signal.SIGRTMAX - SIGNALS_LEFT_FREE, signal.SIGRTMIN, -1):
        if not is_handled(number):
            return number
    raise RuntimeError("cannot interrupt the wrapped function: no real-time signal is free; remove a handler")


def _is_importing(frame: FrameType | None, outermost: object) -> bool:
    """Returns whether a module of the wrapped function is being executed.

    Python would drop the module, but not what it has registered, such as torch's operators: no later import of it would
    succeed in this process.
    """
    while frame is not None and frame.f_code is not outermost:
        if frame.f_code.co_filename == IMPORT_FILE:
            return True
        frame = frame.f_back
    return False


def _place(frame: FrameType | None, outermost: object) -> str:
    """Returns the innermost frames of the wrapped function, the innermost first."""
    shown: list[str] = []
    while frame is not None and frame.f_code is not outermost and len(shown) < FRAMES_SHOWN_MAX:
        shown.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return ", called at ".join(shown)
