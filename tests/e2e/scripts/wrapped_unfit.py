"""A function under the Wrapper whose rank 1 fails and is then refused by a health check.

The argument: "once", "always" (all its processes), or "ends well" (once, and the process ends with code 0).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import cast

from worker_client import inprocess
from worker_client.inprocess import CallWrapper
from worker_client.inprocess.exception import HealthCheckError
from worker_client.inprocess.health_check import HealthCheck
from worker_client.inprocess.state import FrozenState

RANK = int(os.environ["RANK"])
FOLDER = Path(os.environ["TRACE"]).parent
HOW = sys.argv[1]
IS_FIRST = not (FOLDER / f"born-{RANK}").exists()
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "rank": RANK, "pid": os.getpid(), "at": time.monotonic(), **more})
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


class Refusing(HealthCheck):
    """Finds only what a fault of the first process of rank 1 has left."""

    def __call__(self, state: FrozenState) -> FrozenState:
        if RANK == 1 and (state.fn_exception is not None if IS_FIRST else HOW == "always"):
            note("refused")
            raise RuntimeError("the device is broken")
        return state


@inprocess.Wrapper(health_check=Refusing())
def train(call: CallWrapper = INJECTED) -> int:
    note("fn", iteration=call.iteration, as_rank=os.environ["RANK"], world_size=os.environ["WORLD_SIZE"])
    if call.iteration == 0:
        if RANK == 1:
            time.sleep(0.2)
            note("fault")
            raise ValueError("by intention")
        while True:
            time.sleep(0.001)
    return RANK


if not IS_FIRST:
    before = int((FOLDER / f"born-{RANK}").read_text())
    note("born again", is_alone=not Path(f"/proc/{before}").exists())
(FOLDER / f"born-{RANK}").write_text(str(os.getpid()))
try:
    note("returned", value=train())
except HealthCheckError:
    if HOW == "ends well":
        sys.exit(0)
    raise
