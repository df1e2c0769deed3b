"""What must this process finish or release after a fault, before its function can be called again?"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from worker_client.bounded_threads import BoundedThread
from worker_client.inprocess.devices.cuda import on_current_device
from worker_client.inprocess.exception import TimeoutError

if TYPE_CHECKING:
    from worker_client.inprocess.state import FrozenState


class Finalize(abc.ABC):
    """Called on the main thread after every fault, once the process groups are gone. An exception ends the rank."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState: ...


class ThreadedFinalize(Finalize):
    """Calls `fn(*args, **kwargs)` on a thread and waits for it, at most `timeout`.

    Raises exception.TimeoutError if that takes longer, and any exception of `fn`. Works with and without a GPU: if the
    process uses CUDA, the thread uses the caller's device.
    """

    def __init__(
        self,
        timeout: timedelta,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.timeout = timeout
        self.fn = fn
        self.args = () if args is None else tuple(args)
        self.kwargs = {} if kwargs is None else dict(kwargs)

    def __call__(self, state: FrozenState) -> FrozenState:
        name = getattr(self.fn, "__name__", repr(self.fn))
        thread = BoundedThread(f"finalize by {name}", on_current_device(lambda: self.fn(*self.args, **self.kwargs)))
        thread.start()
        if not thread.join(self.timeout.total_seconds()):
            raise TimeoutError(
                f"cannot finalize by {name}: it has not returned within {self.timeout}; give it a longer timeout"
            )
        if thread.error is not None:
            raise thread.error
        return state
