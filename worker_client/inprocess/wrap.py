"""What makes a training function restartable inside its process?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from worker_client.inprocess.call.call_wrapper import CallWrapper as CallWrapper
from worker_client.inprocess.call.wrapper_parameters import WrapperParameters

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Wrapper(WrapperParameters):
    """Makes a function restartable: after a fault on any rank, all ranks leave it and call it again in their process.

    Call the wrapped function on the main thread of every rank. It returns what the function returns on ranks that are
    active in the last iteration, and None on the others. With `enabled=False`, the function stays unchanged.

    Intervals are upper bounds: nothing here polls. `store_factory(**store_kwargs)` is opened only for a function that
    asks its CallWrapper for a store; ranks find each other through the supervisor. Raises TypeError for wrong types and
    ValueError for durations in the wrong order.
    """

    def __call__(self, fn: Callable[_P, _T]) -> Callable[_P, _T | None]:
        """Returns a function that runs `fn` under this Wrapper each time it is called."""
        if not self.enabled:
            return fn

        @functools.wraps(fn)
        def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
            with CallWrapper(self) as call:
                return call(fn, args, kwargs)

        return wrapped
