"""A function under the Wrapper that fails immediately at each call."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from typing import cast

from worker_client import inprocess
from worker_client.inprocess import CallWrapper

INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "at": time.monotonic(), **more})
    with open(os.environ["TRACE"], "a") as trace:
        trace.write(f"{line}\n")


@inprocess.Wrapper(
    # No rank waits at the barrier for longer than a quarter of its timeout.
    barrier_timeout=timedelta(seconds=1),
    hard_timeout=timedelta(seconds=0.9),
    soft_timeout=timedelta(seconds=0.8),
    heartbeat_timeout=timedelta(seconds=0.7),
    heartbeat_interval=timedelta(seconds=0.1),
    monitor_process_interval=timedelta(seconds=0.1),
    monitor_thread_interval=timedelta(seconds=0.1),
    progress_watchdog_interval=timedelta(seconds=0.1),
)
def train(call: CallWrapper = INJECTED) -> None:
    note("fn", iteration=call.iteration)
    raise ValueError("by intention")


try:
    train()
except inprocess.exception.RestartAbort as error:
    note("given up", why=str(error))
    raise
