"""How do ranks wait for each other through one of torch's stores, and how does that end if one does not come?"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from time import monotonic
from typing import Any, Protocol, cast

from worker_client.inprocess.exception import RestartError

CHUNK_MAX = timedelta(seconds=1)  # longest time for which a waiting thread executes no Python


class BarrierError(RestartError):
    """The root of all errors of a barrier between ranks."""


class BarrierTimeout(BarrierError):
    """Raised when ranks do not arrive in time, though none of the missing ones is known to be dead."""


class BarrierOverflow(BarrierError):
    """Raised when more ranks arrive at a barrier than it expects."""


class KeyStore(Protocol):
    """The methods of torch's Store that an open store provides."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def append(self, key: str, value: str, /) -> None: ...
    def check(self, keys: list[str], /) -> bool: ...
    def wait(self, keys: list[str], timeout: timedelta = ..., /) -> None: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...


class StoreMixin:
    """Marks a class as a `store_factory` of the Wrapper; combine it with one of torch's stores, which does the work.

    Its barriers are for code that uses its own store; the Wrapper uses the supervisor's barriers.
    """

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401  # whatever a metaclass takes
        """Keeps our `barrier`, whatever the order of the bases: later versions of torch have a different one."""
        super().__init_subclass__(**options)
        owner = next(each for each in cls.__mro__ if "barrier" in vars(each))
        if not issubclass(owner, StoreMixin):
            cls.barrier = StoreMixin.barrier

    def barrier(
        self,
        ranks: Collection[int],
        group_name: str,
        rendezvous_count: int,
        timeout: timedelta,
        timeout_chunk: timedelta | None = None,
    ) -> None:
        """Lets `ranks` arrive. Blocks until `rendezvous_count` have arrived; with a timeout of 0, does not wait.

        A name serves one use only: a rank that comes twice counts twice. Raises BarrierTimeout and BarrierOverflow.
        """
        store = _opened(self)
        arrived = store.add(f"barrier/{group_name}/arrived", len(ranks))
        _meet(store, group_name, arrived, rendezvous_count, timeout, timeout_chunk)

    def reentrant_barrier(
        self,
        ranks: Collection[int],
        group_name: str,
        rendezvous_count: int,
        timeout: timedelta,
        timeout_chunk: timedelta | None = None,
    ) -> None:
        """Does the same, but counts each rank once, however often it or its replacement comes."""
        store = _opened(self)
        new = sum(store.add(f"barrier/{group_name}/rank/{rank}", 1) == 1 for rank in ranks)
        arrived = store.add(f"barrier/{group_name}/arrived", new)
        _meet(store, group_name, arrived, rendezvous_count, timeout, timeout_chunk)


def _opened(store: StoreMixin) -> KeyStore:
    return cast("KeyStore", store)


def _meet(
    store: KeyStore, name: str, arrived: int, wanted: int, timeout: timedelta, timeout_chunk: timedelta | None
) -> None:
    done = f"barrier/{name}/done"
    if arrived > wanted:
        raise BarrierOverflow(
            f"cannot pass barrier {name!r}: {arrived} ranks came, but it is for {wanted}; use each name once"
        )
    if arrived == wanted:
        store.set(done, "1")
    if not timeout:
        return
    left_s, seen_s = timeout.total_seconds(), monotonic()
    chunk_s = (CHUNK_MAX if timeout_chunk is None else timeout_chunk).total_seconds()
    counts_max_s = max(chunk_s, CHUNK_MAX.total_seconds())  # All ranks may have been suspended: that counts little.
    while not store.check([done]):
        before_s, seen_s = seen_s, monotonic()
        left_s -= min(seen_s - before_s, counts_max_s)
        if left_s <= 0:
            arrived = store.add(f"barrier/{name}/arrived", 0)
            raise BarrierTimeout(
                f"cannot pass barrier {name!r}: {wanted - arrived} of {wanted} ranks did not come within {timeout}; "
                "find them with holdfast stacks"
            )
        try:
            store.wait([done], timedelta(seconds=min(chunk_s, left_s)))
        except RuntimeError:  # torch's timeout; a store that is gone fails again at the next check
            continue
