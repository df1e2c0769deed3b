"""A function under the Wrapper with its own loop and client; rank 1 fails inside a section in iteration 0."""

from __future__ import annotations

import json
import os
import time
from typing import cast

from worker_client import RankMonitorClient, inprocess, workload_monitoring
from worker_client.inprocess import CallWrapper

RANK = int(os.environ["RANK"])
END_WAIT_S = 60.0
held: list[RankMonitorClient] = []  # the clients of all iterations, as a framework's objects may hold them
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "rank": RANK, **more})
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@inprocess.Wrapper()
def train(call: CallWrapper = INJECTED) -> None:
    note("fn", iteration=call.iteration)
    monitor = RankMonitorClient()
    held.append(monitor)
    monitor.init_workload_monitoring()
    monitor.start_section("step")
    if call.iteration == 0:
        if RANK == 1:
            raise ValueError("by intention")
        while True:
            time.sleep(0.01)
    monitor.end_section("step")
    monitor.shutdown_workload_monitoring()


train()
held.clear()
until_s = time.monotonic() + END_WAIT_S
while (is_monitored := workload_monitoring.current() is not None) and time.monotonic() < until_s:
    time.sleep(0.01)
note("returned", is_monitored=is_monitored)
