"""Which stores does a call open for the wrapped function, and when? None until the function asks for one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

from worker_client.inprocess.call.wrapper_parameters import WrapperParameters
from worker_client.inprocess.releasing import store_waits
from worker_client.inprocess.store import KeyStore, PrefixStore


def open_store(parameters: WrapperParameters) -> KeyStore:
    """Opens the store. Blocks until it is open; raises what the factory raises."""
    factory = cast("Callable[..., Any]", parameters.store_factory)
    return cast("KeyStore", factory(**parameters.store_kwargs))


class CallStores:
    """The stores of one call, from construction to `forget()`. Belongs to the main thread."""

    def __init__(
        self,
        parameters: WrapperParameters,
        call: int,
        as_launched: Callable[[], AbstractContextManager[None]],
        *,
        start: str = "",
    ) -> None:
        """`as_launched()` restores the launcher's environment, since an iteration's has other ranks and another
        MASTER_PORT. `start`: see Connection.
        """
        self._parameters = parameters
        self._call = call
        self._as_launched = as_launched
        self._base: KeyStore | None = None
        self._start = start
        self._of_iteration: tuple[int, PrefixStore] | None = None
        self._is_over = False

    def base(self) -> KeyStore:
        """Returns the store of all iterations. Blocks until it is open; raises what the factory raises."""
        if self._is_over:
            raise ValueError("cannot open a store: its call is over; ask for it in the wrapped function")
        if self._base is None:
            with self._as_launched(), store_waits.kept():
                self._base = open_store(self._parameters)
        return self._base

    def of_iteration(self, iteration: int) -> PrefixStore:
        """Returns a part of the base store that contains nothing of earlier iterations, calls, or starts of the ranks.

        The server of a store may outlive the ranks: torchrun's does, and so does a file. Without `holdfast run`, a file
        that an earlier run has left may still show that run's keys.
        """
        base = self.base()
        if self._of_iteration is None or self._of_iteration[0] != iteration:
            name = f"{iteration}" if self._call == 1 else f"{iteration}_of_call_{self._call}"
            name += f"_of_start_{self._start}" if self._start else ""
            self._of_iteration = iteration, PrefixStore(name, base)
        return self._of_iteration[1]

    def forget(self) -> None:
        """Drops the stores, which closes those without other references. Idempotent."""
        self._is_over = True
        self._base = None
        self._of_iteration = None
