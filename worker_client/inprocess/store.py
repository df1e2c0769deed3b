"""Which stores can a script open to exchange values between ranks, and what can a rank assignment ask of the others?

The classes are torch's stores with the reference product's names and arguments. They load torch only when opened, so a
Wrapper can name one without torch. The Wrapper itself needs none.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import timedelta
from typing import Protocol

from worker_client.inprocess.torch_stores.over_torch import OverTorch, of_torch
from worker_client.inprocess.torch_stores.store_barriers import BarrierError as BarrierError
from worker_client.inprocess.torch_stores.store_barriers import BarrierOverflow as BarrierOverflow
from worker_client.inprocess.torch_stores.store_barriers import BarrierTimeout as BarrierTimeout
from worker_client.inprocess.torch_stores.store_barriers import KeyStore as KeyStore
from worker_client.inprocess.torch_stores.store_barriers import StoreMixin as StoreMixin
from worker_client.inprocess.torch_stores.store_reaching import connect

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # the launcher serves the store at MASTER_PORT
STORE_TIMEOUT = timedelta(seconds=300)
ANSWER_TIMEOUT_S = 10.0  # for an answer from the server that already has the port of rank 0


class TCPStore(OverTorch):
    """A TCPStore that one rank serves; the others connect. If the launcher serves one at the address, all connect."""

    _torch_class = "TCPStore"

    def __init__(
        self,
        host_name: str | None = None,
        port: int | None = None,
        world_size: int | None = None,
        timeout: timedelta = STORE_TIMEOUT,
        wait_for_workers: bool = False,
        multi_tenant: bool = False,
        use_libuv: bool = True,
    ) -> None:
        """Opens the store, by default at MASTER_ADDR and MASTER_PORT, served by the process whose RANK is 0.

        A server waits for all of `world_size` (by default WORLD_SIZE) only with `wait_for_workers`: ranks that never
        open the store would hold up the others. Raises RuntimeError if no rank serves within `timeout`, or if something
        other than a store has the port.
        """
        is_default = host_name is None and port is None
        host = os.environ.get("MASTER_ADDR", "localhost") if host_name is None else host_name
        number = _master_port() if port is None else int(port)
        torch_store = of_torch("TCPStore")
        options = {
            "world_size": int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size,
            "timeout": timeout, "wait_for_workers": wait_for_workers, "multi_tenant": multi_tenant,
            "use_libuv": use_libuv,
        }  # fmt: skip

        def join(timeout_s: float) -> None:
            connect(
                lambda: torch_store.__init__(self, host, number, is_master=False, **options), host, number, timeout_s
            )

        if os.environ.get("RANK", "0") != "0" or (is_default and os.environ.get(AGENT_STORE) == str(True)):
            join(timeout.total_seconds())
            return
        try:
            torch_store.__init__(self, host, number, is_master=True, **options)
        except RuntimeError as error:
            try:
                join(min(timeout.total_seconds(), ANSWER_TIMEOUT_S))
            except RuntimeError as second:
                raise RuntimeError(
                    f"cannot serve a store at {host}:{number}: {_first_line(error)}; the server there is not a "
                    f"TCPStore: {_first_line(second)}; give another port: store_kwargs={{'port': …}}"
                ) from error


class FileStore(OverTorch):
    """Keeps its values in a file that all ranks see. The file remains when the ranks are gone."""

    _torch_class = "FileStore"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        of_torch("FileStore").__init__(self, os.fspath(path), -1)


class PrefixStore(OverTorch):
    """The part of another store that belongs to one iteration."""

    _torch_class = "PrefixStore"

    def __init__(self, iteration: int | str, store: KeyStore) -> None:
        """Raises TypeError if `store` is not one of torch's stores."""
        if not isinstance(store, of_torch("Store")):
            raise TypeError(
                f"cannot open a part of {store!r}: it is not a torch.distributed.Store; "
                "give its class one of torch's stores as a base, beside StoreMixin"
            )
        self.iteration = iteration
        self.base_store = store
        of_torch("PrefixStore").__init__(self, f"_inprocess_{iteration}", store)


class RankStore(Protocol):
    """Exchanges values between the ranks of one iteration during rank assignment. Names last for that iteration."""

    def exchange(
        self, name: str, value: str, *, rank: int, ranks: Collection[int], timeout: timedelta
    ) -> dict[int, str]:
        """Returns the values that all `ranks` give under `name`, by rank and the same on every rank. Blocks.

        `rank` is the caller's own number. Numbers are those that the assignment has reached: after a `ShiftRanks`, they
        differ from the last iteration's. The exchange is complete once every process that still takes part in this
        iteration's assignment has given its value; the result lacks processes that died or left meanwhile.
        Raises BarrierTimeout if it is not complete in time.
        """
        ...


def _master_port() -> int:
    text = os.environ.get("MASTER_PORT", "")
    if not text.isdecimal():
        raise RuntimeError(
            f"cannot open a TCPStore: MASTER_PORT={text!r} is not a port; set it, or give store_kwargs={{'port': …}}"
        )
    return int(text)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
