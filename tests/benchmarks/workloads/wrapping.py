"""How do scripts use the Wrapper of each measured product? By one interface: only the import line differs."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

TUNED_S = {  # the reference restarts soonest so: shorter intervals keep its processes busy, and it takes seconds
    "monitor_thread_interval": 0.1,
    "monitor_process_interval": 0.01,
    "heartbeat_interval": 0.1,
    "progress_watchdog_interval": 0.1,
    "last_call_wait": 0.01,
}

_calls = 0


def call_wrapped(inprocess: Any, fn: Callable[[Any], Any], **durations_s: float) -> Any:  # noqa: ANN401  (of two products)
    """Calls `fn` under a Wrapper of that module with those durations; `fn` gets the CallWrapper.

    Each call has its own port beside MASTER_PORT: one store does not serve two calls of the reference.
    """
    global _calls
    _calls += 1
    package = inprocess.__name__.partition(".")[0]
    if package != os.environ["BENCH_CLIENT"].partition(".")[0]:
        raise RuntimeError(f"cannot measure {os.environ['BENCH_CLIENT']}: {package} was imported in its place")
    fn.__annotations__["call"] = inprocess.CallWrapper
    durations = {name: timedelta(seconds=value) for name, value in durations_s.items()}
    store: dict[str, Any] = {"port": int(os.environ["MASTER_PORT"]) + _calls}
    return inprocess.Wrapper(store_kwargs=store, **durations)(fn)(None)
