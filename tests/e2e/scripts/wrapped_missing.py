"""Ranks 0 and 2 call a wrapped function; ranks 1 and 3 call it after these have given up. All note the error."""

import json
import os
import time
from datetime import timedelta
from pathlib import Path

from worker_client import inprocess

RANK = int(os.environ["RANK"])
ORDERS = Path(os.environ["ORDERS"])


def until(name: str) -> None:
    while not ORDERS.joinpath(name).exists():
        time.sleep(0.05)


@inprocess.Wrapper(
    soft_timeout=timedelta(seconds=5),
    hard_timeout=timedelta(seconds=6),
    heartbeat_timeout=timedelta(seconds=5),
    barrier_timeout=timedelta(seconds=12),
)
def train() -> None:
    pass


if RANK in (0, 2):
    ORDERS.joinpath(f"calls-{RANK}").touch()
    until(f"calls-{2 - RANK}")  # a slow start of the other node counts for neither
else:
    until(f"late-{RANK}")
try:
    train()
except (inprocess.store.BarrierTimeout, inprocess.exception.InternalError) as error:
    line = json.dumps({"what": type(error).__name__, "rank": RANK, "message": str(error)})
    with open(os.environ["TRACE"], "a", encoding="utf-8") as trace:
        trace.write(f"{line}\n")
until("end")
