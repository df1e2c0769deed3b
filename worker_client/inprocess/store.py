"""What can a rank assignment ask of the other ranks, and how does that end when they don't answer?"""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import timedelta
from typing import Protocol

from worker_client.inprocess.exception import RestartError


class BarrierError(RestartError):
    """The root of all errors of a barrier between ranks."""


class BarrierTimeout(BarrierError):
    """Raised when not all ranks arrived in time, though none of the missing ones is known to be dead."""


class BarrierOverflow(BarrierError):
    """Raised when more ranks arrived at a barrier than it was made for."""


class StoreMixin:
    """Marks a class as a `store_factory` of the Wrapper; with torch's Store beside it in the bases of a user's own."""


class TCPStore(StoreMixin):
    """What scripts say of the store through which ranks find each other: the address of their coordinator.

    No torch store is opened: barriers and decisions belong to the supervisor, and outlive rank 0.
    """

    def __init__(
        self,
        host_name: str | None = None,
        port: int | None = None,
        world_size: int | None = None,
        timeout: timedelta = timedelta(seconds=300),
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        use_libuv: bool = True,
    ) -> None:
        """By default MASTER_ADDR and MASTER_PORT; what concerns torch's server only is accepted."""
        self.host_name = os.environ.get("MASTER_ADDR", "") if host_name is None else host_name
        self.port = int(os.environ.get("MASTER_PORT", "0")) if port is None else int(port)
        self.timeout = timeout


class RankStore(Protocol):
    """How the ranks of one iteration exchange values while they assign ranks. Names live as long as the iteration."""

    def exchange(
        self, name: str, value: str, *, rank: int, ranks: Collection[int], timeout: timedelta
    ) -> dict[int, str]:
        """Every rank of `ranks` gives a value under `name`; returns them all, by rank, alike on all ranks. Blocks.

        `rank` is the caller's own number. Numbers are those that the assignment has reached: after a `ShiftRanks` they
        are no longer those of the last iteration. So it is complete once every process that still takes part in this
        iteration's assignment has given its value; one that died or left meanwhile is missing in the result.
        Raises BarrierTimeout when it is not complete in time.
        """
        ...
