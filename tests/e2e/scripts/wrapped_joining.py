"""A function under the Wrapper that obeys the files in its folder: "kill-1-0" is for rank 1 in iteration 0.

The replacement of a killed rank calls the function only when "join" exists. The argument is the maximum number of
active
ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import cast

from worker_client import inprocess
from worker_client.inprocess import CallWrapper, Compose
from worker_client.inprocess.rank_assignment import MaxActiveWorldSize, ShiftRanks

RANK = int(os.environ["RANK"])
FOLDER = Path(os.environ["TRACE"]).parent
ACTIVE_MAX = int(sys.argv[1])
PAUSE_S = 0.005
INJECTED = cast("CallWrapper", None)  # replaced by the Wrapper


def note(what: str, **more: object) -> None:
    line = json.dumps({"what": what, "rank": RANK, "at": time.monotonic(), **more})
    descriptor = os.open(os.environ["TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def is_there(name: str) -> bool:
    return (FOLDER / name).exists()


@inprocess.Wrapper(rank_assignment=Compose(MaxActiveWorldSize(ACTIVE_MAX), ShiftRanks()))
def train(call: CallWrapper = INJECTED) -> int:
    at = call.iteration
    note("fn", iteration=at, as_rank=os.environ["RANK"], active=os.environ["WORLD_SIZE"], world=call.state.world_size)
    while not is_there(f"return-{at}"):
        if is_there(f"kill-{RANK}-{at}"):
            note("killed", iteration=at)
            os.kill(os.getpid(), signal.SIGKILL)
        if is_there(f"raise-{RANK}-{at}"):
            raise ValueError("by intention")
        time.sleep(PAUSE_S)
    return RANK


if is_there(f"born-{RANK}"):
    note("born again")
    while not is_there("join"):
        time.sleep(PAUSE_S)
(FOLDER / f"born-{RANK}").touch()
note("returned", value=train())
