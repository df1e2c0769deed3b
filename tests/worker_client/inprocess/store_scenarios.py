"""What do ranks do with stores? `python -m tests.worker_client.inprocess.store_scenarios NAME` is one rank of it."""

from __future__ import annotations

import os
import sys
import time
import weakref
from typing import Any

from tests.worker_client.inprocess.scenario import FOR_EVER_S, INJECTED, RANK, SCENARIOS, environment, note, scenario
from worker_client import inprocess
from worker_client.inprocess import CallWrapper
from worker_client.inprocess.store import FileStore, StoreMixin, TCPStore

opened = 0


class CountedFileStore(FileStore):
    def __init__(self, *, path: str) -> None:
        global opened
        opened += 1
        super().__init__(path)


class CountedTCPStore(TCPStore):
    """A store with another default port than ours, as in the reference product's examples."""

    def __init__(self, port: int | None = None) -> None:
        global opened
        opened += 1
        super().__init__(port=int(os.environ["MASTER_PORT"]) if port is None else port)


def stores(factory: type[StoreMixin], kwargs: dict[str, Any]) -> None:
    seen: list[weakref.ref[Any]] = []
    parts: list[weakref.ref[Any]] = []

    @inprocess.Wrapper(store_factory=factory, store_kwargs=kwargs)
    def train(call: CallWrapper = INJECTED) -> None:
        base, part = call.base_store, call.store
        is_kept = call.store is part and call.base_store is base and part.base_store is base
        told = {
            "base_is_new": all(known() is not base for known in seen),
            "part_is_new": all(known() is not part for known in parts),
            "in_part": part.check(["word"]),
            "in_base": base.get("word").decode() if base.check(["word"]) else None,
        }
        note("fn", iteration=call.iteration, asked_twice=is_kept, **told)
        seen.append(weakref.ref(base))
        parts.append(weakref.ref(part))
        part.barrier([RANK], "all have looked", 2, call.wrapper.barrier_timeout)
        if call.iteration == 0:
            if RANK == 0:
                base.set("word", "from iteration 0")
                part.set("word", "of iteration 0 alone")
                part.set("done", "")
            part.wait(["done"])
            if RANK == 1:
                raise ValueError("by intention")
            time.sleep(FOR_EVER_S)

    before = environment()
    train()
    note("opened", times=opened)
    note("over", is_closed=all(known() is None for known in seen), environment_kept=environment() == before)


@scenario
def file_store() -> None:
    stores(CountedFileStore, {"path": os.environ["STORE_FILE"]})


@scenario
def tcp_store() -> None:
    stores(CountedTCPStore, {})


@scenario
def two_calls() -> None:
    @inprocess.Wrapper(store_factory=FileStore, store_kwargs={"path": os.environ["STORE_FILE"]})
    def train(call: CallWrapper = INJECTED) -> None:
        note("fn", in_part=call.store.check(["word"]), in_base=call.base_store.check(["word"]))
        call.store.set("word", "")
        call.base_store.set("word", "")

    train()
    train()


@scenario
def asks_for_none() -> None:
    @inprocess.Wrapper(store_factory=CountedTCPStore)
    def train(call: CallWrapper = INJECTED) -> None:
        assert not hasattr(call, "monitor_process")
        try:
            _ = call.monitor_process
        except AttributeError as error:
            note("monitor_process", message=str(error))

    train()
    note("opened", times=opened)
    note("torch", is_loaded="torch" in sys.modules)


if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
