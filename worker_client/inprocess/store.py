"""Which stores can a script open to exchange values between ranks, and what can a rank assignment ask of the others?

The classes are torch's stores with the reference product's names and arguments. They load torch when they are opened,
so that a Wrapper can name one without it. The Wrapper itself needs none.
"""

from __future__ import annotations

import os
import socket
import threading
import types
from collections.abc import Collection
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from worker_client.inprocess.torch_stores.store_barriers import BarrierError as BarrierError
from worker_client.inprocess.torch_stores.store_barriers import BarrierOverflow as BarrierOverflow
from worker_client.inprocess.torch_stores.store_barriers import BarrierTimeout as BarrierTimeout
from worker_client.inprocess.torch_stores.store_barriers import KeyStore as KeyStore
from worker_client.inprocess.torch_stores.store_barriers import StoreMixin as StoreMixin

if TYPE_CHECKING:
    from typing import Self

    class _OfTorch:
        """As KeyStore, which it is; a protocol itself can't be made."""

        def set(self, key: str, value: str, /) -> None: ...
        def get(self, key: str, /) -> bytes: ...
        def add(self, key: str, amount: int, /) -> int: ...
        def append(self, key: str, value: str, /) -> None: ...
        def check(self, keys: list[str], /) -> bool: ...
        def wait(self, keys: list[str], timeout: timedelta = ..., /) -> None: ...
        def multi_get(self, keys: list[str], /) -> list[bytes]: ...

else:
    _OfTorch = object  # torch's own class, once an instance is made

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # the launcher serves the store at MASTER_PORT
STORE_TIMEOUT = timedelta(seconds=300)
ANSWER_TIMEOUT_S = 10.0  # of whoever has the port that rank 0 wanted to serve at
CONNECT_TIMEOUT_S = 1.0
PAUSE_S = 0.1  # between two attempts to reach a server that is not there yet


class _OverTorch(StoreMixin, _OfTorch):
    """Becomes one of torch's stores when an instance is made."""

    _torch_class: ClassVar[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ANN401  # __init__ says what it takes
        torch_class = _of_torch(cls._torch_class)
        kind: Any = cls if issubclass(cls, torch_class) else _joined(cls, torch_class)
        return torch_class.__new__(kind)


class TCPStore(_OverTorch):
    """One rank serves, the others connect. Where the launcher serves a store at the address, all of them connect."""

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
        """By default at MASTER_ADDR and MASTER_PORT, and served by the process whose RANK is 0.

        A server waits for all of `world_size` (by default WORLD_SIZE) with `wait_for_workers` only: ranks that never
        ask for the store would hold up those that do. Raises RuntimeError where nobody serves within `timeout`, and
        where the port is taken by something that is no store.
        """
        is_default = host_name is None and port is None
        host = os.environ.get("MASTER_ADDR", "localhost") if host_name is None else host_name
        number = _master_port() if port is None else int(port)
        torch_store = _of_torch("TCPStore")
        options = {
            "world_size": int(os.environ.get("WORLD_SIZE", "1")) if world_size is None else world_size,
            "timeout": timeout, "wait_for_workers": wait_for_workers, "multi_tenant": multi_tenant,
            "use_libuv": use_libuv,
        }  # fmt: skip

        def join(timeout_s: float) -> None:
            _connect(
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
                    f"cannot serve a store at {host}:{number}: {_first_line(error)}, and who is there is no store: "
                    f"{_first_line(second)}; give another port: store_kwargs={{'port': …}}"
                ) from error


class FileStore(_OverTorch):
    """In a file that all ranks see. It stays when the ranks are gone."""

    _torch_class = "FileStore"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        _of_torch("FileStore").__init__(self, os.fspath(path), -1)


class PrefixStore(_OverTorch):
    """The part of another store that is one iteration's."""

    _torch_class = "PrefixStore"

    def __init__(self, iteration: int | str, store: KeyStore) -> None:
        """Raises TypeError where `store` is none of torch's stores."""
        if not isinstance(store, _of_torch("Store")):
            raise TypeError(
                f"cannot open a part of {store!r}: it has to be a torch.distributed.Store; "
                "give its class one of torch's stores as a base, beside StoreMixin"
            )
        self.iteration = iteration
        self.base_store = store
        _of_torch("PrefixStore").__init__(self, f"_inprocess_{iteration}", store)


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


def _of_torch(name: str) -> Any:  # noqa: ANN401  # torch has no types for them
    import torch.distributed

    if not torch.distributed.is_available():
        raise RuntimeError(f"cannot open a {name}: torch.distributed.is_available() does not hold; use another torch")
    return getattr(torch.distributed, name)


def _joined(cls: type[StoreMixin], torch_class: type) -> type:
    """`cls`, and one of torch's stores: made once for each."""
    joined: type | None = vars(cls).get("_over_torch")
    if joined is None:

        def describe(namespace: dict[str, Any]) -> None:
            namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}

        joined = types.new_class(cls.__name__, (cls, torch_class), exec_body=describe)
        cls._over_torch = joined  # pyright: ignore[reportAttributeAccessIssue]  # of this very class
    return joined


def _master_port() -> int:
    text = os.environ.get("MASTER_PORT", "")
    if not text.isdecimal():
        raise RuntimeError(
            f"cannot open a TCPStore: MASTER_PORT={text!r} is no port; set it, or give store_kwargs={{'port': …}}"
        )
    return int(text)


def _connect(join: Any, host: str, port: int, timeout_s: float) -> None:  # noqa: ANN401  # any callable
    """In a thread: a server that accepts and says nothing would hold the main thread inside C++ for ever."""
    from worker_client.bounded_threads import BoundedThread  # brings logging

    deadline_s = monotonic() + timeout_s
    _reach(host, port, timeout_s)
    thread = BoundedThread("connect to a store", join)
    thread.start()
    if not thread.join(deadline_s - monotonic()):
        raise RuntimeError(f"cannot connect to a store at {host}:{port}: no answer within {timeout_s:.3g} s")
    if thread.error is not None:
        raise thread.error


def _reach(host: str, port: int, timeout_s: float) -> None:
    """Blocks until somebody listens there. torch would tell each attempt on stderr, with its stack."""
    deadline_s = monotonic() + timeout_s
    pause = threading.Event()
    while True:
        try:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:
            if monotonic() >= deadline_s:
                raise RuntimeError(
                    f"cannot connect to a store at {host}:{port}: {error.strerror or error} for {timeout_s:.3g} s; "
                    "does rank 0 open it, too?"
                ) from error
        pause.wait(PAUSE_S)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
