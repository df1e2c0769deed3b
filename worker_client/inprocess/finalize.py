"""What must this process finish or give up after a fault, before its function can be called again?"""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from worker_client.bounded_threads import BoundedThread
from worker_client.inprocess.exception import TimeoutError

if TYPE_CHECKING:
    from worker_client.inprocess.state import FrozenState


class Finalize(abc.ABC):
    """Called on the main thread after every fault, once the process groups are gone. What it raises ends the rank."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState: ...


class ThreadedFinalize(Finalize):
    """Calls `fn(*args, **kwargs)` on a thread and waits for it, at most `timeout`.

    Raises exception.TimeoutError if it takes longer, and what `fn` raises. Works with and without a GPU: where the
    process uses CUDA, the thread uses the device of the caller.
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
            raise TimeoutError(f"cannot finalize by {name} within {self.timeout}; give it a longer timeout")
        if thread.error is not None:
            raise thread.error
        return state


def on_current_device(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same for another thread: with the CUDA device that this thread uses, if the process uses CUDA."""
    cuda = cuda_in_use()
    if cuda is None:
        return run
    device = cuda.current_device()

    def run_on_device() -> Any:  # noqa: ANN401  # whatever `run` returns
        cuda.set_device(device)
        return run()

    return run_on_device


def cuda_in_use() -> Any:  # noqa: ANN401  # torch.cuda, which is not imported for this question
    """torch.cuda if this process has initialised it, else None. Never imports torch."""
    cuda = sys.modules.get("torch.cuda")
    return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None
